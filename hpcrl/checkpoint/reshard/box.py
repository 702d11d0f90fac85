"""Boxes of a tensor, and where their bytes lie in a row-major file. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Box(NamedTuple):
    """A part of a tensor: from ``start`` up to, not including, ``stop`` in each dimension. That of a scalar has none."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """All of a tensor of that shape."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def at(cls, offset: Sequence[int], shape: Sequence[int]) -> Box:
        """The box of that shape at that offset."""
        return cls(tuple(offset), tuple(o + s for o, s in zip(offset, shape, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """To index an array with."""
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))

    def meet(self, other: Box) -> Box | None:
        """What both have; None if that is nothing."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, stop) if all(a < b for a, b in zip(start, stop, strict=True)) else None

    def within(self, outer: Box) -> Box:
        """The same part, counted from where ``outer`` starts."""
        start = tuple(a - b for a, b in zip(self.start, outer.start, strict=True))
        return Box.at(start, self.shape)


def byte_ranges(box: Box, shape: Sequence[int], itemsize: int) -> np.ndarray:
    """Where the bytes of a box lie in a row-major array of ``shape``: int64 (ranges, 2), first and end byte, rising.

    Ranges that touch are one, so there are as few as can be. They come in the order of the box's own elements.
    """
    if box.size == 0:
        return np.empty((0, 2), np.int64)
    extents = box.shape
    # Dimensions behind this one are covered whole, so one step of it is one run of bytes.
    last = max((dim for dim in range(len(shape)) if extents[dim] != shape[dim]), default=0)
    strides = [itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    starts = np.zeros(1, np.int64)
    for dim in range(last):
        steps = np.arange(box.start[dim], box.stop[dim], dtype=np.int64) * strides[dim]
        starts = (starts[:, None] + steps[None, :]).reshape(-1)
    length = itemsize
    if shape:
        starts += box.start[last] * strides[last]
        length = extents[last] * strides[last]
    return np.stack([starts, starts + length], axis=1)
