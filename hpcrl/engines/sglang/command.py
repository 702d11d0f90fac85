"""The command line of a server; pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcrl.engines.sglang.settings import Sglang

KEY_VARIABLE = "HPCRL_ENGINE_KEY"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a server runs, and what it serves.

    Attributes:
        gpus: on this node; 0 computes on the CPU.
        nodes, node, first_address: of a server that spans nodes: how many, which of them this is, and ``host:port`` that the
            first listens at for the others.
    """

    model: Path
    address: str
    port: int
    dtype: str
    context: int
    seed: int
    gpus: int = 0
    nodes: int = 1
    node: int = 0
    first_address: str = ""


def arguments(sglang: Sglang, place: Place) -> list[str]:
    """What follows ``python -m sglang.launch_server``, without the key, which no command line may show."""
    listed = ["--model-path", str(place.model), "--host", place.address, "--port", str(place.port)]
    listed += ["--dtype", place.dtype, "--context-length", str(place.context), "--random-seed", str(place.seed)]
    listed += ["--tp-size", str(max(1, place.gpus * place.nodes)), "--skip-server-warmup"]
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


def environment(base: dict[str, str], sglang: Sglang, place: Place, *, key: str, threads: int) -> dict[str, str]:
    """Of the server's process.

    Args:
        base: of this process; what another interpreter must not inherit is left out.
        threads: for a server on the CPU.
    """
    kept = {name: value for name, value in base.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    if not sglang.python and "PYTHONPATH" in base:
        kept["PYTHONPATH"] = base["PYTHONPATH"]
    if sglang.python_path:
        kept["PYTHONPATH"] = ":".join(sglang.python_path)
    kept |= {KEY_VARIABLE: key, "HF_HUB_OFFLINE": base.get("HF_HUB_OFFLINE", "1"), "TOKENIZERS_PARALLELISM": "false"}
    if not place.gpus:
        kept |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(threads)}
    return kept
