"""Blocks of an open file as they were saved, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.datasets import DataSets
from hpcrl.dataplane.snapshot.layout import LABELS, BlockInfo, SavedBlock

# Bytes of values that are read at a time.
WINDOW = 8 << 20


def read_infos(sets: DataSets) -> list[BlockInfo]:
    """Every block without its payload, in the order of the file."""
    filled = {name: sets.column_present(name) for name in sets.columns}
    labels = {name: sets.label(name) for name in LABELS}
    infos = []
    for number, (start, end) in enumerate(itertools.pairwise(sets.bounds.tolist())):
        columns = frozenset(name for name, present in filled.items() if present[number])
        own = {name: values[start:end].tolist() for name, (values, known) in labels.items() if known[number]}
        infos.append(BlockInfo(sets.name, int(sets.row_ids[start]), end - start, columns, Labels(**own)))
    return infos


def read_blocks(sets: DataSets, infos: Sequence[BlockInfo], numbers: Sequence[int]) -> Iterator[SavedBlock]:
    """Blocks in the order asked for; about a window is held at a time.

    Args:
        infos: of all blocks of the file.
        numbers: which, by their order in the file.
    """
    bounds = sets.bounds.tolist()
    for begin, end in _windows(sets, numbers):
        start = bounds[begin]
        data = {name: sets.span(column, start, bounds[end]) for name, column in sets.columns.items()}
        for number in range(begin, end):
            info, a, b = infos[number], bounds[number] - start, bounds[number + 1] - start
            ids = np.arange(info.first, info.first + info.rows, dtype=np.int64)
            columns = {
                name: pack(sets.name, column, ids, data[name][a:b])
                for name, column in sets.columns.items()
                if name in info.columns
            }
            yield SavedBlock(info.stream, info.first, info.rows, columns, info.labels)


def _windows(sets: DataSets, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of blocks that follow each other in the file, none much larger than a window: (first, last + 1)."""
    sizes = sets.block_bytes
    run: list[int] = []
    held = 0
    for number in numbers:
        size = int(sizes[number])
        if run and (number != run[-1] + 1 or held + size > WINDOW):
            yield run[0], run[-1] + 1
            run, held = [], 0
        run.append(number)
        held += size
    if run:
        yield run[0], run[-1] + 1
