"""Versions in a node's shared memory, written there by the trainer's ranks of the node and loaded from there by its engines.

::

    FOLDER/0/, FOLDER/1/                two slots, filled in turn, each a model in Hugging Face layout
      model-0000R-of-0000N.safetensors  rank R - 1's tensors, overwritten in place; locked by who writes or loads
      part-0000R                        number and hash of the version that this file holds; gone while it changes
      version.json                      the version's own record, by rank 0
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from hpcrl.checkpoint.publish.files import part_name, write_companions, write_index
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError, in_file_order, make_header, owners
from hpcrl.checkpoint.publish.versions import MARKER, Version, write_version
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.interface import Held
from hpcrl.run.errors import DeadlineExceeded, host
from hpcrl.run.failpoints import reach
from hpcrl.run.locks import try_lock
from hpcrl.run.stop import StopFlag, back_off, wait_for

_SLOTS = 2
_POLL = (0.002, 0.05)


class MemorySender:
    """Writes one rank's part.

    Args:
        folder: in the node's shared memory, of this attempt; made if it is not there.
        base: model folder that gives ``config.json`` and the tokenizer files.
        specs: every tensor of the model, the same on all ranks.
        seconds: how long an engine may still load the version before the last one.
    """

    def __init__(
        self, folder: Path, base: Path, specs: list[TensorSpec], *, rank: int = 0, ranks: int = 1, seconds: float
    ) -> None:
        self._folder, self._base, self._specs = folder, base, specs
        self._rank, self._ranks, self._seconds = rank, ranks, seconds
        self._sent = 0
        self._maps: dict[int, tuple[int, mmap.mmap]] = {}

    def send(self, version: Version, held: Held) -> None:
        """See :class:`~hpcrl.checkpoint.transport.interface.Sender`."""
        number, self._sent = self._sent % _SLOTS, self._sent + 1
        slot = self._folder / str(number)
        marker = slot / _marker(self._rank, self._ranks)
        try:
            descriptor, memory = self._maps.get(number) or self._make(number, slot, held)
            what = f"the engines of {host()} to have loaded what is in {slot}"
            wait_for(what, partial(try_lock, descriptor, fcntl.LOCK_EX), seconds=self._seconds, pauses=back_off(*_POLL))
            try:
                marker.unlink(missing_ok=True)
                if self._rank == 0:
                    (slot / MARKER).unlink(missing_ok=True)
                reach("transport.send", slot)
                at = len(make_header(_in_order(held), {"format": "pt"}))
                for spec in _in_order(held):
                    np.copyto(np.frombuffer(memory, np.uint8, spec.nbytes, at), held[spec.name][1].view(np.uint8))
                    at += spec.nbytes
                if self._rank == 0:
                    # Whole here, however it was published.
                    whole = msgspec.structs.replace(version, previous=None, previous_hash="", files=[])
                    write_version(slot, whole, durable=False)
                marker.write_text(_label(version.version, version.hash))
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        except (OSError, WeightsError, DeadlineExceeded) as error:
            raise TransportError(f"rank {self._rank} on {host()}: {slot} cannot be filled: {error}") from error

    def close(self) -> None:
        """See :class:`~hpcrl.checkpoint.transport.interface.Sender`; what this rank wrote is removed."""
        for number, (descriptor, memory) in self._maps.items():
            memory.close()
            os.close(descriptor)
            for name in (_marker(self._rank, self._ranks), _file(self._rank, self._ranks)):
                (self._folder / str(number) / name).unlink(missing_ok=True)
        self._maps = {}

    def _make(self, number: int, slot: Path, held: Held) -> tuple[int, mmap.mmap]:
        slot.mkdir(mode=0o700, parents=True, exist_ok=True)
        specs = _in_order(held)
        header = make_header(specs, {"format": "pt"})
        size = len(header) + sum(spec.nbytes for spec in specs)
        path = slot / _file(self._rank, self._ranks)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Without its pages a full file system would end the process at some later write to the mapping.
            os.posix_fallocate(descriptor, 0, size)
            os.truncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        memory[: len(header)] = header
        self._maps[number] = descriptor, memory
        if self._rank == 0:
            self._complete(slot)
        return descriptor, memory

    def _complete(self, slot: Path) -> None:
        """What a model folder has beside the tensors; what an earlier process of this rank left is replaced."""
        for path in slot.iterdir():
            if not path.name.startswith(("model-", "part-")) and path.suffix != ".safetensors":
                path.unlink()
        write_companions(self._base, slot, self._specs[0].dtype, durable=False)
        if self._ranks > 1:
            files = {name: _file(rank, self._ranks) for name, rank in owners(self._specs, self._ranks).items()}
            write_index(slot, files, sum(spec.nbytes for spec in self._specs), durable=False)


@contextmanager
def open_version(
    folder: Path, version: int, hash: str, *, ranks: int, seconds: float, stop: StopFlag | None = None
) -> Iterator[Path]:
    """A version in the node's shared memory, in Hugging Face layout, which stays as it is inside.

    Args:
        ranks: of the trainer.
        seconds: until all ranks have written their part.

    Raises:
        TransportError: it did not come in time, or a newer one has taken its place.
        Stopped: the role was asked to stop.
    """
    label = _label(version, hash)

    def find() -> Path | None:
        for number in range(_SLOTS):
            slot = folder / str(number)
            if all(_holds(slot, rank, ranks, label) for rank in range(ranks)):
                return slot
        return None

    with ExitStack() as stack:
        try:
            what = f"version {version} to be in the shared memory of {host()} ({folder})"
            slot = wait_for(what, find, seconds=seconds, stop=stop, pauses=back_off(*_POLL))
            for rank in range(ranks):
                descriptor = os.open(slot / _file(rank, ranks), os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                what = f"rank {rank} of the trainer to let go of {slot}"
                lock = partial(try_lock, descriptor, fcntl.LOCK_SH)
                wait_for(what, lock, seconds=seconds, stop=stop, pauses=back_off(*_POLL))
        except (OSError, DeadlineExceeded) as error:
            raise TransportError(f"{error}") from error
        if not all(_holds(slot, rank, ranks, label) for rank in range(ranks)):
            raise TransportError(f"version {version} was replaced in {slot} before it was loaded")
        yield slot


def _in_order(held: Held) -> list[TensorSpec]:
    return in_file_order(spec for spec, _ in held.values())


def _file(rank: int, ranks: int) -> str:
    return f"model{part_name(rank, ranks)}.safetensors"


def _marker(rank: int, ranks: int) -> str:
    return f"part{part_name(rank, ranks)}"


def _label(version: int, hash: str) -> str:
    return f"{version} {hash}"


def _holds(slot: Path, rank: int, ranks: int, label: str) -> bool:
    with suppress(OSError):
        return (slot / _marker(rank, ranks)).read_text() == label
    return False
