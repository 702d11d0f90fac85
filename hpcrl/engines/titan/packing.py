"""Prefix-shared packing: samples of one prompt share one copy of it.

A **unit** is laid out as ``[prompt][response 1][response 2]…``. Positions of each response go on from the prompt's end, and
a response token sees its prompt and the earlier tokens of its own response, nothing else; so every log-probability is that of
the sample alone, while the prompt is computed once. Units are packed into rows, rows into micro-batches of a token budget.

The price of a mask is attention over the whole row. A unit is therefore split into several, each with its own copy of the
prompt, where that is cheaper. Attention over each sequence by itself (:class:`Sequences`) has no such price: then a micro-batch
is one row, and units are split only where the budget makes it. Pure and deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.shares import by_group

# Rows are padded to a multiple of this, which the GPU's memory-efficient attention asks of a mask.
ROW_MULTIPLE = 8
_PADDING = -1


class Sequences(NamedTuple):
    """A micro-batch of one row as sequences, each of which attends by itself: its queries to its keys, causally.

    The last query of a sequence sees its last key, the one before it one key less, and so on: a response has its prompt's keys
    before its own.

    Attributes:
        keys: int64 (keys,), positions of the row that the keys of all sequences are at; None if they are its positions.
        query_starts, key_starts: int32 (sequences + 1,), where each sequence's queries and keys begin, and the end.
        most_queries, most_keys: of one sequence.
    """

    keys: Any
    query_starts: Any
    key_starts: Any
    most_queries: int
    most_keys: int


@dataclass(frozen=True)
class MicroBatch:
    """Rows of equal length for one forward pass, and which of their positions predict what.

    Attributes:
        tokens, positions: int64 (rows, length); padding holds token 0 at position 0.
        segment: int32 (rows, length), which prompt or response of the row a token belongs to; -1 is padding. A prompt with
            only one response is one with it.
        parent: int32 (rows, length), the segment that a token sees besides its own: a response's prompt, else its own.
        source: int64 (targets,), flat index row * length + column of the position whose logits predict the target. The
            prompt's last token is the source of the first token of each of its responses.
        targets: int64 (targets,), token ids of all responses, sample by sample.
        samples: indexes into the samples given to :func:`pack`, in the order of the targets.
        lengths: number of targets of each of these samples.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segment: np.ndarray
    parent: np.ndarray
    source: np.ndarray
    targets: np.ndarray
    samples: tuple[int, ...]
    lengths: tuple[int, ...]

    def mask(self) -> np.ndarray:
        """bool (rows, length, length): whether the token of the second axis sees that of the third. Never an empty row."""
        seen: np.ndarray = sees(self.segment, self.parent, np.tri(self.tokens.shape[1], dtype=bool))
        return seen

    def sequences(self) -> Sequences:
        """The only row's segments as sequences; what :meth:`mask` lets through is the same.

        Raises:
            ValueError: there are several rows.
        """
        if len(self.tokens) != 1:
            raise ValueError(f"a micro-batch of {len(self.tokens)} rows has no sequences")
        segment, parent = self.segment[0], self.parent[0]
        starts = np.flatnonzero(np.diff(segment, prepend=segment[0] - 1))
        ends = np.append(starts[1:], len(segment))
        own = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        at = {int(segment[start]): places for start, places in zip(starts, own, strict=True)}
        keys = [
            places if parent[start] == segment[start] else np.concatenate([at[int(parent[start])], places])
            for start, places in zip(starts, own, strict=True)
        ]
        lengths = [len(places) for places in keys]
        return Sequences(
            None if sum(lengths) == len(segment) else np.concatenate(keys),
            np.append(starts, len(segment)).astype(np.int32),
            np.cumsum([0, *lengths]).astype(np.int32),
            int((ends - starts).max()),
            max(lengths),
        )

    @staticmethod
    def empty() -> MicroBatch:
        """One padding token and no targets: what a rank runs when the others have work and it has none."""
        cell = np.zeros((1, 1), np.int64)
        padding = np.full((1, 1), _PADDING, np.int32)
        none = np.zeros(0, np.int64)
        return MicroBatch(cell, cell, padding, padding, none, none, (), ())


def sees(segment: Any, parent: Any, causal: Any) -> Any:
    """:meth:`MicroBatch.mask`, from arrays of numpy or from torch's on any device.

    Args:
        segment, parent: integers (rows, length), as in a micro-batch.
        causal: bool (length, length), lower triangle.
    """
    key = segment[:, None, :]
    return ((key == segment[:, :, None]) | (key == parent[:, :, None])) & causal


@dataclass(frozen=True)
class Layout:
    """How samples become micro-batches; the attributes are arguments of :func:`pack`."""

    budget: int
    pair_cost: float = 0.0
    one_row: bool = False

    def pack(self, samples: Sequence[Sample], indexes: Sequence[int]) -> list[MicroBatch]:
        """:func:`pack`."""
        return pack(samples, indexes, budget=self.budget, pair_cost=self.pair_cost, one_row=self.one_row)


def pack(
    samples: Sequence[Sample],
    indexes: Sequence[int],
    *,
    budget: int,
    pair_cost: float = 0.0,
    share: bool = True,
    one_row: bool = False,
) -> list[MicroBatch]:
    """Pack some of the samples into micro-batches, each of which holds at most ``budget`` tokens with padding.

    Units go by falling length, first fit, into rows as long as the longest unit of the micro-batch, so that attention is
    never wider than some unit needs. A sample longer than the budget gets a micro-batch of its own.

    Args:
        pair_cost: cost of one pair of query and key in attention, in units of the cost of a token outside attention.
        share: whether samples of one prompt may share it.
        one_row: each micro-batch is one row, as :meth:`MicroBatch.sequences` takes it.
    """
    units = [unit for group in by_group(samples, indexes) for unit in _units(samples, group, budget, pair_cost, share)]
    waiting = sorted(units, key=lambda unit: (-_length(samples, unit), unit[0]))
    batches = []
    while waiting:
        length = _length(samples, waiting[0])
        room = 1 if one_row else max(1, budget // _padded(length))
        if one_row:
            length = max(length, budget // ROW_MULTIPLE * ROW_MULTIPLE)
        rows: list[list[list[int]]] = []
        free: list[int] = []
        left = []
        for unit in waiting:
            size = _length(samples, unit)
            row = next((number for number, space in enumerate(free) if space >= size), None)
            if row is None and len(rows) < room:
                row = len(rows)
                rows.append([])
                free.append(length)
            if row is None:
                left.append(unit)
            else:
                rows[row].append(unit)
                free[row] -= size
        if one_row:
            length -= free[0]
        batches.append(_lay_out(samples, rows, _padded(length)))
        waiting = left
    return batches


def _padded(length: int) -> int:
    return -(-length // ROW_MULTIPLE) * ROW_MULTIPLE


def _length(samples: Sequence[Sample], unit: Sequence[int]) -> int:
    return len(samples[unit[0]].prompt_ids) + sum(len(samples[index].response_ids) for index in unit)


def _units(samples: Sequence[Sample], group: list[int], budget: int, pair_cost: float, share: bool) -> list[list[int]]:
    """Split a group into units of at most ``budget`` tokens, as many as cost the least."""

    def cost(parts: list[list[int]]) -> float:
        lengths = [_length(samples, part) for part in parts]
        return sum(length + pair_cost * length * length for length in lengths)

    def split(count: int) -> list[list[int]]:
        bounds = [round(number * len(group) / count) for number in range(count + 1)]
        return [group[start:end] for start, end in pairwise(bounds)]

    if not share:
        return split(len(group))
    splits = [split(count) for count in range(1, len(group) + 1)]
    fitting = [parts for parts in splits if all(_padded(_length(samples, part)) <= budget for part in parts)]
    return min(fitting, key=cost) if fitting else splits[-1]


def _lay_out(samples: Sequence[Sample], rows: list[list[list[int]]], length: int) -> MicroBatch:
    shape = (len(rows), length)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segment, parent = np.full(shape, _PADDING, np.int32), np.full(shape, _PADDING, np.int32)
    source: list[np.ndarray] = []
    order: list[int] = []
    for row, units in enumerate(rows):
        column = number = 0
        for unit in units:
            prompt = samples[unit[0]].prompt_ids
            prompt_number = number
            end = column + len(prompt)
            tokens[row, column:end] = prompt
            positions[row, column:end] = np.arange(len(prompt))
            segment[row, column:end] = parent[row, column:end] = prompt_number
            last = row * length + end - 1
            for index in unit:
                response = samples[index].response_ids
                number += len(unit) > 1
                column, end = end, end + len(response)
                tokens[row, column:end] = response
                positions[row, column:end] = len(prompt) + np.arange(len(response))
                segment[row, column:end] = number
                parent[row, column:end] = prompt_number
                source.append(np.concatenate([[last], row * length + np.arange(column, end - 1)]))
                order.append(index)
            column, number = end, number + 1
    targets = np.concatenate([samples[index].response_ids for index in order]).astype(np.int64)
    lengths = tuple(len(samples[index].response_ids) for index in order)
    return MicroBatch(
        tokens, positions, segment, parent, np.concatenate(source).astype(np.int64), targets, tuple(order), lengths
    )
