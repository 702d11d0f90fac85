"""What a save of the trainer's state costs, against torch's distributed checkpoint and a plain dump, in the same run.

    python tools/bench/checkpoint_state.py [--layers 30] [--tokens 64] [--rounds 3] [--folder DIR]

A model of the size of SmolLM2-135M (float32) with Adam takes training steps on the CPU. In each round every kind saves once:
``ours`` (:class:`hpcrl.checkpoint.state.saver.Saver`), ``dcp`` (``torch.distributed.checkpoint.save``), ``async``
(``async_save``) and ``dump`` (one safetensors file, fsynced). All write the same tensors to the same disk, durably.

``stall``: how long the training thread stands still for the save: in the call that begins it, and before the next optimizer
step, which must not change what is still being copied. ``copy``: the stall of ours if there were nothing to compute between
the two. ``step``: a whole training step in which a save is begun, against one in which none is. ``durable``: from the begin
until the save is whole on disk. ``memory``: the most that the trainer and its helper process take together, above what a
training step takes (proportional set size). Medians over rounds, best and worst beside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from transformers import LlamaConfig, LlamaForCausalLM

from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saver import About, Saved, Saver


class Dump:
    """One file, and training waits. The other ways to save derive from it."""

    name = "dump"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, tensors: dict[str, Any], step: int) -> None:
        """What the training thread calls."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{step}.safetensors"
        save_file(tensors, path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def copied(self) -> None:
        """What it waits for before the next optimizer step."""

    def finish(self) -> None:
        """Wait until the save is on disk."""

    def close(self) -> None:
        """Let go of everything."""


class Ours(Dump):
    """In the background."""

    name = "ours"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._saver = Saver(folder, Alone(), keep=Keep(last=1))

    def begin(self, tensors: dict[str, Any], step: int) -> None:
        self._saver.begin(tensors, step, About(run_id="bench"))

    def copied(self) -> None:
        self._saver.copied()

    def finish(self) -> None:
        ended = self._saver.finish(seconds=900)
        if not isinstance(ended, Saved):
            raise RuntimeError(str(ended))

    def close(self) -> None:
        self._saver.close()


class Sync(Dump):
    """torch's, and training waits."""

    name = "dcp"

    def begin(self, tensors: dict[str, Any], step: int) -> None:
        save(tensors, storage_writer=FileSystemWriter(self.folder / str(step)), no_dist=True)


class Asynchronous(Dump):
    """torch's, in a thread after a copy."""

    name = "async"
    _future: Any = None

    def begin(self, tensors: dict[str, Any], step: int) -> None:
        # A writer is a stager too, of an older kind; it would be slower than the default one.
        self._future = async_save(tensors, checkpoint_id=str(self.folder / str(step)), no_dist=True)

    def finish(self) -> None:
        self._future.result()


class Training:
    """A model that takes steps on random tokens."""

    def __init__(self, layers: int, tokens: int) -> None:
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=layers,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        self._model = LlamaForCausalLM(config)
        self._ids = torch.randint(0, config.vocab_size, (1, tokens))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6, fused=True)
        self.step(None)

    def step(self, kind: Dump | None) -> float:
        """One step; how long it waited for a save [s]."""
        loss: Any = self._model(input_ids=self._ids, labels=self._ids).loss
        loss.backward()
        began = time.perf_counter()
        if kind is not None:
            kind.copied()
        waited = time.perf_counter() - began
        self._optimizer.step()
        self._optimizer.zero_grad()
        return waited

    def tensors(self) -> dict[str, Any]:
        """Everything that a save holds."""
        state: dict[str, Any] = {}
        for name, p in self._model.named_parameters():
            state[f"model.{name}"] = p.detach()
            state |= {f"optimizer.{name}.{key}": value for key, value in self._optimizer.state[p].items()}
        return state


def memory() -> int:
    """Proportional set size of this process and its children [bytes]."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


@contextmanager
def peak(found: list[int]) -> Iterator[None]:
    """Append the highest :func:`memory` meanwhile."""
    ended, seen = threading.Event(), [memory()]

    def watch() -> None:
        while not ended.wait(0.1):
            seen.append(memory())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        found.append(max(seen))


def measure(training: Training, kinds: list[Dump], rounds: int) -> dict[str, dict[str, list[float]]]:
    """By figure and kind."""
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for turn in range(len(kinds)):
            kind = kinds[(turn + number) % len(kinds)]
            os.sync()
            began = time.perf_counter()
            training.step(None)
            figures["step without"][kind.name].append(time.perf_counter() - began)
            began = time.perf_counter()
            kind.begin(training.tensors(), number + 1)
            stall = time.perf_counter() - began
            stall += training.step(kind)
            figures["step"][kind.name].append(time.perf_counter() - began)
            figures["stall"][kind.name].append(stall)
            kind.finish()
            figures["durable"][kind.name].append(time.perf_counter() - began)
            if isinstance(kind, Ours):
                began = time.perf_counter()
                kind.begin(training.tensors(), number + 1)
                kind.copied()
                figures["copy"][kind.name].append(time.perf_counter() - began)
                kind.finish()
            print(f"round {number + 1}: {kind.name:6} stall {stall * 1e3:8.1f} ms", flush=True)
            if not isinstance(kind, Ours):
                shutil.rmtree(kind.folder)
    return figures


def measure_memory(training: Training, kinds: list[type[Dump]], root: Path) -> dict[str, float]:
    """The most that each takes beyond training, from its first save to its second."""
    extra = {}
    for one in kinds:
        kind, found = one(root / f"memory-{one.name}"), list[int]()
        # A step itself takes memory for a while.
        with peak(found):
            training.step(None)
            training.step(None)
        with peak(found):
            for step in (1, 2):
                kind.begin(training.tensors(), step)
                training.step(kind)
                kind.finish()
        kind.close()
        shutil.rmtree(kind.folder)
        extra[one.name] = float(found[1] - found[0])
    return extra


def main() -> None:
    """Measure and print, a line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30, help="30 is SmolLM2-135M")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a training step")
    parser.add_argument("--threads", type=int, default=1, help="of the training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to save [the system's temporary folder]")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    root = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        training = Training(asked.layers, asked.tokens)
        size = sum(tensor.nbytes for tensor in training.tensors().values())
        print(
            f"{size / 1e9:.2f} GB in {len(training.tensors())} tensors; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        )
        kinds: list[type[Dump]] = [Ours, Sync, Asynchronous, Dump]
        extra = measure_memory(training, kinds, root)
        made = [one(root / one.name) for one in kinds]
        made[0].begin(training.tensors(), 0)
        made[0].copied()
        made[0].finish()
        figures = measure(training, made, asked.rounds)
        for kind in made:
            kind.close()
    finally:
        shutil.rmtree(root)
    figures["copy"]["dcp"] = figures["stall"]["dcp"]
    for figure in ("stall", "copy", "step", "durable"):
        base = statistics.median(figures[figure]["dcp"])
        for one in kinds:
            if one.name not in figures[figure]:
                continue
            values = figures[figure][one.name]
            middle = statistics.median(values)
            ratio = f"1/{base / middle:.1f}" if middle < base else f"{middle / base:.2f}"
            print(f"{figure:8} {one.name:6} {middle:9.4f} s ({min(values):.4f} to {max(values):.4f})  {ratio} of dcp")
    without = [value for values in figures["step without"].values() for value in values]
    print(f"step     none   {statistics.median(without):9.4f} s ({min(without):.4f} to {max(without):.4f})")
    for one in kinds:
        print(f"memory   {one.name:6} {extra[one.name] / 1e9:9.2f} GB  {extra[one.name] / size:.2f} of the state")


if __name__ == "__main__":
    main()
