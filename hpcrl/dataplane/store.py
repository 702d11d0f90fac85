"""Where a process's packed bytes go: into the operation itself, into the node's shared memory, or to another node."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.packing import Packing
from hpcrl.dataplane.plane import Refs
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.plan.edges import Edge

# Up to here a copy through the desk costs less than a segment's bookkeeping; see tools/bench/dataplane.py.
INLINE_BYTES = 2048


class Transport(Protocol):
    """Moves bytes between nodes; :class:`hpcrl.dataplane.transferqueue.mover.Mover`."""

    def write(self, blocks: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, Ref]]:
        """Keep bytes of blocks, by field."""

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """The bytes again."""

    def clear(self, indexes: Sequence[int]) -> None:
        """Forget them, some time soon."""

    def close(self) -> None:
        """Let go of it."""


class NodeStore:
    """Small bytes in the operation, larger ones in shared memory, those of columns that leave the node by a transport.

    Args:
        folder: the attempt's, in the node's shared memory.
        who, life, node: of this process.
        across: ``(stream, column)`` that some process needs on another node.
        transport: for these.
        inline_bytes: the most that is small.
    """

    def __init__(
        self,
        folder: Path,
        *,
        who: str,
        life: int,
        node: str,
        across: frozenset[Edge] = frozenset(),
        transport: Transport | None = None,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        self._folder, self._who, self._life, self._node = folder, who, life, node
        self._across, self._transport, self._inline_bytes = across, transport, inline_bytes
        self._lock = threading.Lock()
        self._writer: SegmentWriter | None = None
        self._reader = SegmentReader(folder, node)

    def write(self, stream: str, blocks: Sequence[tuple[int, Mapping[str, Packing]]]) -> list[Refs]:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        written: list[Refs] = [{} for _ in blocks]
        moving: list[dict[str, np.ndarray]] = [{} for _ in blocks]
        try:
            for refs, moves, (_, columns) in zip(written, moving, blocks, strict=True):
                for column, packing in columns.items():
                    if packing.size <= self._inline_bytes:
                        refs[column] = Ref(kind="inline", size=packing.size, data=packing.packed().tobytes())
                    elif (stream, column) in self._across:
                        moves[f"{stream}/{column}"] = packing.packed()
                    else:
                        refs[column] = self._segments().place(packing.size, packing.into)
            if any(moving):
                for refs, moved in zip(written, self._moving().write(moving), strict=True):
                    refs.update((field.removeprefix(f"{stream}/"), ref) for field, ref in moved.items())
        except BaseException:
            self.discard([ref for refs in written for ref in refs.values()])
            raise
        return written

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        moved = [ref for ref in refs if ref.kind == "tq"]
        came = iter(self._moving().read(moved) if moved else ())
        found = []
        for ref in refs:
            if ref.kind == "tq":
                found.append(next(came))
            else:
                found.append(np.frombuffer(ref.data, np.uint8) if ref.kind == "inline" else self._reader.read(ref))
        return found

    def discard(self, refs: Sequence[Ref]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        if self._writer is not None:
            self._writer.discard([ref for ref in refs if ref.kind == "shm"])
        self.freed({}, [ref.index for ref in refs if ref.kind == "tq"])

    def freed(self, segments: Mapping[str, int], values: Sequence[int]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        if segments:
            self._segments().freed(segments)
        if values:
            self._moving().clear(values)

    def close(self) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        if self._writer is not None:
            self._writer.close()
        self._reader.release()
        if self._transport is not None:
            self._transport.close()

    def _segments(self) -> SegmentWriter:
        with self._lock:
            if self._writer is None:
                self._writer = SegmentWriter(self._folder, self._who, self._life, self._node)
            return self._writer

    def _moving(self) -> Transport:
        if self._transport is None:
            raise DataPlaneError(
                f"{self._who} on node {self._node}: rows lie on another node and this run has no storage units; "
                "this is a fault of the plan"
            )
        return self._transport
