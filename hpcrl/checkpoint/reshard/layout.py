"""Who holds which part of each tensor. Pure.

A rank holds at most one box of a tensor. Pieces of a tensor are disjoint and cover it; a piece that several ranks hold is
replicated.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from hpcrl.checkpoint.reshard.box import Box
from hpcrl.run.errors import HpcrlError


class ReshardError(HpcrlError):
    """One layout cannot be made from the other; names the tensor."""


class Piece(NamedTuple):
    """A box of a tensor and the ranks that hold it, rising."""

    box: Box
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """One tensor's pieces. Tensors that are alike may share one, so that what is found out for it is found out once.

    Attributes:
        itemsize: bytes of an element.
        pieces: none of them empty.
    """

    shape: tuple[int, ...]
    itemsize: int
    pieces: tuple[Piece, ...]

    def held_by(self, rank: int) -> int | None:
        """Number of the piece that a rank holds; None if it holds nothing of the tensor."""
        return self._by_rank.get(rank)

    def overlapping(self, box: Box) -> Iterator[tuple[int, Box]]:
        """Numbers of the pieces that have something of a box, and what that is."""
        dim, order, starts, highest = self._index
        if dim is None:
            found: Sequence[int] = order
        else:
            found = order[bisect_right(highest, box.start[dim]) : bisect_left(starts, box.stop[dim])]
        for number in found:
            if (common := self.pieces[number].box.meet(box)) is not None:
                yield number, common

    @cached_property
    def _by_rank(self) -> dict[int, int]:
        return {rank: number for number, piece in enumerate(self.pieces) for rank in piece.ranks}

    @cached_property
    def _index(self) -> tuple[int | None, list[int], list[int], list[int]]:
        """The dimension with most cuts, and along it: pieces by their start, the starts, the greatest stop so far."""
        dims = range(len(self.shape))
        dim = max(dims, key=lambda d: len({piece.box.start[d] for piece in self.pieces}), default=None)
        order = sorted(range(len(self.pieces)), key=lambda number: self.pieces[number].box.start)
        if dim is None:
            return None, order, [], []
        order.sort(key=lambda number: self.pieces[number].box.start[dim])
        starts = [self.pieces[number].box.start[dim] for number in order]
        highest = list(itertools.accumulate((self.pieces[number].box.stop[dim] for number in order), max))
        return dim, order, starts, highest


@dataclass(frozen=True, eq=False)
class Layout:
    """All tensors of a model on a number of ranks, by name."""

    ranks: int
    tensors: Mapping[str, TensorLayout]


@dataclass(frozen=True)
class Mesh:
    """Ranks in a named grid, the last dimension counting fastest: ``Mesh(("dp", 4), ("tp", 2))`` has rank 3 at dp 1, tp 1."""

    dims: tuple[tuple[str, int], ...]

    def __init__(self, *dims: tuple[str, int]) -> None:
        object.__setattr__(self, "dims", dims)

    @property
    def size(self) -> int:
        """Ranks."""
        return math.prod(size for _, size in self.dims)


@lru_cache(maxsize=4096)
def spread(
    mesh: Mesh,
    shape: tuple[int, ...],
    itemsize: int,
    cuts: tuple[tuple[str, int], ...] = (),
    only: tuple[tuple[str, int], ...] = (),
) -> TensorLayout:
    """The pieces of a tensor that is cut over some dimensions of a mesh and replicated over the others.

    Args:
        cuts: (mesh dimension, tensor dimension), applied in this order, each cutting what those before left, as
            ``torch.chunk`` cuts: equal pieces rounded up, the last ones smaller or empty. FSDP over tensor parallelism on the
            same dimension is ``(("tp", 0), ("dp", 0))``.
        only: (mesh dimension, coordinate): ranks elsewhere hold nothing of the tensor, as with a pipeline's stages.

    Raises:
        ReshardError: a dimension that does not exist, or a mesh dimension named twice.
    """
    sizes, fixed = dict(mesh.dims), dict(only)
    named = [name for name, _ in cuts] + list(fixed)
    if len(set(named)) != len(named) or not set(named) <= set(sizes):
        raise ReshardError(f"mesh dimensions {named}: each at most once, out of {list(sizes)}")
    if any(not 0 <= dim < len(shape) for _, dim in cuts) or any(not 0 <= at < sizes[name] for name, at in only):
        raise ReshardError(f"cuts {cuts} and places {only} do not fit a tensor of shape {shape} on a mesh of {sizes}")
    ranges = {name: [fixed[name]] if name in fixed else range(size) for name, size in sizes.items()}
    held: dict[Box, list[int]] = {}
    for coordinates in itertools.product(*ranges.values()):
        at = dict(zip(ranges, coordinates, strict=True))
        rank = 0
        for name, size in sizes.items():
            rank = rank * size + at[name]
        start, stop = [0] * len(shape), list(shape)
        for name, dim in cuts:
            start[dim], stop[dim] = _chunk(start[dim], stop[dim], sizes[name], at[name])
        held.setdefault(Box(tuple(start), tuple(stop)), []).append(rank)
    return TensorLayout(shape, itemsize, tuple(Piece(box, tuple(sorted(ranks))) for box, ranks in held.items() if box.size))


def _chunk(start: int, stop: int, count: int, index: int) -> tuple[int, int]:
    step = -(-(stop - start) // count)
    return min(start + index * step, stop), min(start + (index + 1) * step, stop)
