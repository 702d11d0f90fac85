"""The command line of a server; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.engines.sglang.settings import Sglang
from hpcrl.run.addresses import host_part

KEY_VARIABLE = "HPCRL_ENGINE_KEY"
# SGLang keeps some tokens of the context to itself, and without a word makes completions shorter by them.
_SPARE = 8
# Of another interpreter than this process's.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a server runs, and what it serves.

    Attributes:
        inner_port: at which its own processes find each other.
        gpus: of this node that it computes on; none computes on the CPU.
        context: tokens of prompt and completion together.
        threads: of a server on the CPU.
        nodes, node, first_address: of a server that spans nodes: how many, which of them this is, and ``host:port`` that the
            first listens at for the others.
    """

    model: Path
    address: str
    port: int
    inner_port: int
    dtype: str
    context: int
    seed: int
    gpus: tuple[int, ...] = ()
    threads: int = 1
    nodes: int = 1
    node: int = 0
    first_address: str = ""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{host_part(self.address)}:{self.port}"


def arguments(sglang: Sglang, place: Place) -> list[str]:
    """What follows ``python -m sglang.launch_server``, without the key, which no command line may show."""
    listed = ["--model-path", str(place.model), "--host", place.address, "--port", str(place.port)]
    listed += ["--nccl-port", str(place.inner_port)]
    listed += ["--dtype", place.dtype, "--context-length", str(place.context + _SPARE), "--random-seed", str(place.seed)]
    listed += ["--tp-size", str(max(1, len(place.gpus)) * place.nodes), "--skip-server-warmup"]
    # Else its scheduler takes a whole core while it waits.
    listed += ["--sleep-on-idle"]
    attention, sampling = sglang.attention_backend, sglang.sampling_backend
    if not place.gpus:
        listed += ["--device", "cpu", "--disable-overlap-schedule"]
        attention, sampling = attention or "torch_native", sampling or "pytorch"
    if place.nodes > 1:
        listed += ["--nnodes", str(place.nodes), "--node-rank", str(place.node), "--dist-init-addr", place.first_address]
    given = {
        "--mem-fraction-static": sglang.memory_fraction,
        "--max-running-requests": sglang.max_running,
        "--max-total-tokens": sglang.max_tokens,
        "--attention-backend": attention or None,
        "--sampling-backend": sampling or None,
        "--grammar-backend": sglang.grammar_backend or None,
    }
    listed += [part for name, value in given.items() if value is not None for part in (name, str(value))]
    listed += ["--enable-memory-saver"] * sglang.memory_saver + ["--enable-metrics"] * sglang.metrics
    return [*listed, *sglang.arguments]


def environment(
    base: Mapping[str, str], sglang: Sglang, place: Place, *, key: str, kernels: Path, temporary: Path
) -> dict[str, str]:
    """Of the server's process.

    Args:
        base: of this process.
        kernels: folder for compiled kernels; where ``base`` names one for a compiler, that stays.
        temporary: folder for what it leaves behind.
    """
    kept = kernel_caches(kernels) | environment_of(base, sglang)
    kept |= {
        KEY_VARIABLE: key,
        "TMPDIR": str(temporary),
        "HF_HUB_OFFLINE": base.get("HF_HUB_OFFLINE", "1"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    # Else /health makes a token, which takes a second at least and fails while generation is paused.
    kept["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "false"
    kept["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "true"
    if place.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = visible(base.get("CUDA_VISIBLE_DEVICES"), place.gpus)
    else:
        kept |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(place.threads)}
    return kept


def environment_of(base: Mapping[str, str], sglang: Sglang) -> dict[str, str]:
    """Of any process of the interpreter that serves: without what is meant for this one's."""
    kept = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    if not sglang.python and "PYTHONPATH" in base:
        kept["PYTHONPATH"] = base["PYTHONPATH"]
    if sglang.python_path:
        kept["PYTHONPATH"] = ":".join(sglang.python_path)
    return kept


def visible(outer: str | None, gpus: tuple[int, ...]) -> str:
    """``CUDA_VISIBLE_DEVICES`` for these of this process's GPUs.

    Args:
        outer: this process's own, by whose order the GPUs are numbered.
    """
    names = outer.split(",") if outer else []
    return ",".join(names[gpu] if gpu < len(names) else str(gpu) for gpu in gpus)


def kernel_caches(folder: Path) -> dict[str, str]:
    """Where SGLang and the compilers below it keep what they compiled; newer versions derive all from the first."""
    return {
        "SGLANG_CACHE_DIR": str(folder),
        "SGLANG_DG_CACHE_DIR": str(folder / "deep_gemm"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "CUDA_CACHE_PATH": str(folder / "nv"),
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "TVM_FFI_CACHE_DIR": str(folder / "tvm_ffi"),
    }
