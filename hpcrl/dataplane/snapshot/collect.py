"""Payload of live blocks, read where it lies while the run goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.snapshot.layout import SavedBlock

# Fetch the bytes of refs from the storage units.
Fetch = Callable[[Sequence[Ref]], list[np.ndarray]]
# Fetched from storage units at a time.
_BLOCKS, _BYTES = 32, 8 << 20


class Collector:
    """Reads blocks; those that are cleared meanwhile cannot be read any more and are left out.

    Args:
        node: the blocks' columns in other nodes' shared memory are left to those nodes.
        fetch: for columns in storage units.
        patience_s: units that give nothing for so long are away, which is no reason to leave out what they hold [s].

    Attributes:
        left_out: stream and first row of what could not be read.
        why: the first of these could not.
    """

    def __init__(self, reader: SegmentReader, node: str, fetch: Fetch, *, patience_s: float) -> None:
        self._reader, self._node, self._fetch, self._patience_s = reader, node, fetch, patience_s
        self.left_out: list[tuple[str, int]] = []
        self.why = ""

    def read(self, blocks: Sequence[LiveBlock]) -> Iterator[SavedBlock]:
        """The blocks with their bytes, in their order; an array may be a view of shared memory.

        Raises:
            DataPlaneError: the storage units are away.
        """
        for piece in _pieces(blocks):
            moved = self._moved(piece)
            for block in piece:
                try:
                    columns = {
                        name: self._column(ref, moved) for name, ref in block.refs.items() if ref.node in ("", self._node)
                    }
                except DataPlaneError as error:
                    self._leave(block, error)
                    continue
                if columns:
                    yield SavedBlock(block.stream, block.first, block.rows, columns, block.labels)

    def _column(self, ref: Ref, moved: dict[tuple[str, int], np.ndarray | DataPlaneError]) -> np.ndarray:
        if ref.kind == "inline":
            return np.frombuffer(ref.data, np.uint8)
        if ref.kind == "shm":
            return self._reader.read(ref)
        found = moved[ref.where, ref.index]
        if isinstance(found, DataPlaneError):
            raise found
        return found

    def _moved(self, piece: Sequence[LiveBlock]) -> dict[tuple[str, int], np.ndarray | DataPlaneError]:
        """What lies in storage units, or why it is not to be had, by field and index."""
        by_block = [refs for block in piece if (refs := [ref for ref in block.refs.values() if ref.kind == "tq"])]
        if not by_block:
            return {}
        found: dict[tuple[str, int], np.ndarray | DataPlaneError] = {}
        until = time.monotonic() + self._patience_s
        try:
            every = list(itertools.chain.from_iterable(by_block))
            found.update(((ref.where, ref.index), data) for ref, data in zip(every, self._fetch(every), strict=True))
        except DataPlaneError:
            # One of them may be gone, and its unit then gives none of them.
            for refs in by_block:
                try:
                    found.update(((ref.where, ref.index), data) for ref, data in zip(refs, self._fetch(refs), strict=True))
                except DataPlaneError as error:
                    if time.monotonic() >= until:
                        raise
                    found.update(((ref.where, ref.index), error) for ref in refs)
        return found

    def _leave(self, block: LiveBlock, error: DataPlaneError) -> None:
        self.left_out.append((block.stream, block.first))
        self.why = self.why or str(error)


def _pieces(blocks: Sequence[LiveBlock]) -> Iterator[list[LiveBlock]]:
    piece: list[LiveBlock] = []
    held = 0
    for block in blocks:
        size = sum(ref.size for ref in block.refs.values() if ref.kind == "tq")
        if piece and (len(piece) == _BLOCKS or held + size > _BYTES):
            yield piece
            piece, held = [], 0
        piece.append(block)
        held += size
    if piece:
        yield piece
