"""What a server of SGLang is told. Standard library only, so that a recipe may hold it."""

from __future__ import annotations

import os
from dataclasses import dataclass

# Set by hpcrl itself: told twice, one of them would be wrong.
_OURS = (
    "--model-path",
    "--model",
    "--host",
    "--port",
    "--nccl-port",
    "--api-key",
    "--admin-api-key",
    "--tp-size",
    "--tensor-parallel-size",
    "--dtype",
    "--context-length",
    "--random-seed",
    "--device",
    "--base-gpu-id",
    "--nnodes",
    "--node-rank",
    "--dist-init-addr",
    "--skip-server-warmup",
    "--sleep-on-idle",
    "--enable-memory-saver",
    "--enable-metrics",
)


@dataclass(frozen=True, kw_only=True)
class Sglang:
    """How an inference role serves by SGLang. Versions 0.5.17 to 0.5.23.

    Attributes:
        python: interpreter of the environment that SGLang is installed in; empty is the run's own.
        python_path: folders that go before that environment's own, for what it lacks.
        memory_fraction: of a GPU's memory for weights and cache; None leaves it to SGLang.
        max_running: requests computed at a time; None leaves it to SGLang.
        max_tokens: tokens of cache, which on a CPU would otherwise take half of the memory; None leaves it to SGLang.
        attention_backend, sampling_backend: empty leaves it to SGLang; on a CPU they are torch's.
        grammar_backend: "none" saves loading what rollouts do not use.
        memory_saver: weights and cache can be released while another group uses the GPU.
        metrics: serve ``/metrics``.
        kernels: folder for compiled kernels on the node's own disk, kept from run to run; empty is one of this user's own under
            ``/var/tmp``.
        arguments: further ones, as on SGLang's command line.
        start_s: from the start to readiness; kernels may be compiled at the first start on a machine [s].
    """

    python: str = ""
    python_path: tuple[str, ...] = ()
    memory_fraction: float | None = None
    max_running: int | None = None
    max_tokens: int | None = None
    attention_backend: str = ""
    sampling_backend: str = ""
    grammar_backend: str = "none"
    memory_saver: bool = False
    metrics: bool = True
    kernels: str = ""
    arguments: tuple[str, ...] = ()
    start_s: float = 900.0

    def problems(self) -> list[str]:
        """Everything wrong with the values themselves, a sentence each."""
        wrong = []
        for name, value in (
            ("python", self.python),
            ("kernels", self.kernels),
            *(("python_path", one) for one in self.python_path),
        ):
            # A role's process has another working directory.
            if os.sep in value and not os.path.isabs(value):
                wrong.append(f"sglang.{name} must be an absolute path, not {value!r}")
        if self.memory_fraction is not None and not 0 < self.memory_fraction < 1:
            wrong.append(f"sglang.memory_fraction must be between 0 and 1, not {self.memory_fraction}")
        for name in ("max_running", "max_tokens"):
            count = getattr(self, name)
            if count is not None and count < 1:
                wrong.append(f"sglang.{name} must be at least 1, not {count}")
        if not self.start_s > 0:
            wrong.append(f"sglang.start_s must be above 0, not {self.start_s}")
        for argument in self.arguments:
            name = argument.split("=")[0]
            if name in _OURS:
                wrong.append(f"sglang.arguments has {name}, which hpcrl sets itself from the recipe and the plan")
        return wrong
