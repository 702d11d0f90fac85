"""Where a process's packed bytes go: into the operation itself, into the node's shared memory, or to another node."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.plan.edges import Edge

# Up to here a copy through the desk costs less than a segment's bookkeeping; see tools/bench/dataplane.py.
INLINE_BYTES = 2048


class Transport(Protocol):
    """Moves bytes between nodes; :class:`hpcrl.dataplane.transferqueue.mover.Mover`."""

    def write(self, field: str, blocks: Sequence[tuple[int, np.ndarray]]) -> list[Ref]:
        """Keep bytes of blocks, by first row id."""

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """The bytes again."""

    def clear(self, refs: Sequence[Ref]) -> None:
        """Forget them."""

    def close(self) -> None:
        """Let go of it."""


class InlineStore:
    """Everything travels in the operations; for a data plane within one process."""

    def write(self, stream: str, column: str, blocks: Sequence[tuple[int, np.ndarray]]) -> list[Ref]:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        return [_inline(data) for _, data in blocks]

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        return [np.frombuffer(ref.data, np.uint8) for ref in refs]

    def discard(self, refs: Sequence[Ref]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""

    def clear(self, refs: Sequence[Ref]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""

    def freed(self, segments: dict[str, int]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""

    def close(self) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""


class NodeStore:
    """Small bytes in the operation, larger ones in shared memory, those of columns that leave the node by a transport.

    Args:
        folder: the attempt's, in the node's shared memory.
        who, life, node: of this process.
        across: ``(stream, column)`` that some process needs on another node.
        transport: for these.
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

    def write(self, stream: str, column: str, blocks: Sequence[tuple[int, np.ndarray]]) -> list[Ref]:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        large = [block for block in blocks if block[1].nbytes > self._inline_bytes]
        if (stream, column) in self._across:
            kept = iter(self._moving().write(f"{stream}/{column}", large) if large else ())
        else:
            kept = (self._segments().write([data]) for _, data in large)
        return [next(kept) if data.nbytes > self._inline_bytes else _inline(data) for _, data in blocks]

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
        self.clear(refs)

    def clear(self, refs: Sequence[Ref]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        moved = [ref for ref in refs if ref.kind == "tq"]
        if moved:
            self._moving().clear(moved)

    def freed(self, segments: dict[str, int]) -> None:
        """See :class:`hpcrl.dataplane.plane.Store`."""
        self._segments().freed(segments)

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


def _inline(data: np.ndarray) -> Ref:
    return Ref(kind="inline", size=data.nbytes, data=data.tobytes())
