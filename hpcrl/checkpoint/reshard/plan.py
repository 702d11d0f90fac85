"""What each rank of one layout must copy from the ranks of another. Pure, and the same on whichever rank it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hpcrl.checkpoint.reshard.box import Box, byte_ranges
from hpcrl.checkpoint.reshard.layout import Layout, ReshardError, TensorLayout

# How far a rank of the source is from one of the target: 0 = the same node, and so on.
Distance = Callable[[int, int], int]


class Copy(NamedTuple):
    """One part of a tensor from one rank to another.

    Attributes:
        source: rank that gives it.
        source_box: where it lies in that rank's shard.
        source_shape: of that shard.
        target_box: where it goes in the taking rank's shard.
    """

    tensor: str
    source: int
    source_box: Box
    source_shape: tuple[int, ...]
    target_box: Box

    def ranges(self, itemsize: int) -> np.ndarray:
        """Where its bytes lie in the source's shard: see :func:`~hpcrl.checkpoint.reshard.box.byte_ranges`."""
        return byte_ranges(self.source_box, self.source_shape, itemsize)


class _Move(NamedTuple):
    piece: int
    source_box: Box
    target_box: Box


# By layouts and number of the target's piece: tensors that are alike share their layouts.
_Found = dict[tuple[TensorLayout, TensorLayout, int], tuple[_Move, ...]]


def plan(source: Layout, target: Layout, *, distance: Distance | None = None) -> Iterator[tuple[int, list[Copy]]]:
    """:func:`plan_rank` for every rank of the target, rising."""
    _require_same(source, target)
    found: _Found = {}
    for rank in range(target.ranks):
        yield rank, list(_copies(source, target, rank, distance, found))


def plan_rank(source: Layout, target: Layout, rank: int, *, distance: Distance | None = None) -> list[Copy]:
    """What one rank of the target copies, so that it has every element of its shards exactly once and nothing else.

    Where several ranks hold a piece, the nearest give it, in turn.

    Args:
        distance: of a source rank from a target rank; None = all are alike.

    Raises:
        ReshardError: the source lacks a tensor or a part of one, has a part twice, or has it in another shape or element size.
    """
    _require_same(source, target)
    return list(_copies(source, target, rank, distance, {}))


def _copies(source: Layout, target: Layout, rank: int, distance: Distance | None, found: _Found) -> Iterator[Copy]:
    for number, (name, wanted) in enumerate(target.tensors.items()):
        mine = wanted.held_by(rank)
        if mine is None:
            continue
        held = source.tensors[name]
        if (held, wanted, mine) not in found:
            found[held, wanted, mine] = _moves(name, held, wanted.pieces[mine].box)
        # Copies of the same piece to several ranks, and of several pieces of a tensor, start at different replicas.
        turn = number + mine + wanted.pieces[mine].ranks.index(rank)
        for move in found[held, wanted, mine]:
            box, holders = held.pieces[move.piece]
            if distance is not None and len(holders) > 1:
                nearest = min(distance(holder, rank) for holder in holders)
                holders = tuple(holder for holder in holders if distance(holder, rank) == nearest)
            yield Copy(name, holders[turn % len(holders)], move.source_box, box.shape, move.target_box)


def _moves(name: str, held: TensorLayout, box: Box) -> tuple[_Move, ...]:
    moves = tuple(
        _Move(piece, common.within(held.pieces[piece].box), common.within(box)) for piece, common in held.overlapping(box)
    )
    elements = sum(move.source_box.size for move in moves)
    if elements != box.size:
        what = "lacks a part" if elements < box.size else "holds a part twice"
        raise ReshardError(f"tensor {name}: the source {what} of {box.start} to {box.stop}: {elements} of {box.size} elements")
    return moves


def _require_same(source: Layout, target: Layout) -> None:
    for name, wanted in target.tensors.items():
        held = source.tensors.get(name)
        if held is None:
            raise ReshardError(f"tensor {name}: the source does not have it")
        if (held.shape, held.itemsize) != (wanted.shape, wanted.itemsize):
            raise ReshardError(
                f"tensor {name}: the source has {held.shape} of {held.itemsize} bytes an element, the target wants "
                f"{wanted.shape} of {wanted.itemsize}"
            )
