"""Which trajectories are wanted, and in which order; pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

# One row of a table of trajectories; file and place: where the rest of it is. length: tokens of the answer.
ROW = np.dtype(
    [
        ("row", np.int64),
        ("step", np.int32),
        ("prompt", np.int64),
        ("sample", np.int32),
        ("reward", np.float32),
        ("outcome", np.int8),
        ("advantage", np.float32),
        ("length", np.int64),
        ("prompt_length", np.int64),
        ("first_version", np.int64),
        ("last_version", np.int64),
        ("file", np.int32),
        ("place", np.int64),
    ]
)
Key = Literal["step", "reward", "length"]
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARED = re.compile(rf"(<=|>=|<|>|==|=)\s*({_NUMBER})")
_BETWEEN = re.compile(rf"({_NUMBER})?:({_NUMBER})?")


@dataclass(frozen=True)
class Bounds:
    """Numbers between two bounds, which belong to it or not."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """``10``, ``10:20`` with both ends, ``10:``, ``:20``, ``<0.5``, ``<=0.5``, ``>1``, ``>=1``, ``=1``.

        Raises:
            ValueError: it is none of these.
        """
        text = text.strip()
        if found := _COMPARED.fullmatch(text):
            sign, number = found[1], float(found[2])
            if sign[0] == "<":
                return cls(high=number, high_open=sign == "<")
            return cls(low=number, low_open=sign == ">") if sign[0] == ">" else cls(number, number)
        if (found := _BETWEEN.fullmatch(text)) and text != ":":
            low, high = float(found[1] or "-inf"), float(found[2] or "inf")
            if low > high:
                raise ValueError(f"{text!r} is empty: {low:g} is above {high:g}")
            return cls(low, high)
        if re.fullmatch(_NUMBER, text):
            return cls(float(text), float(text))
        raise ValueError(f"{text!r} is neither a number, nor FIRST:LAST, nor a comparison such as '<0.5' or '>=1'")

    def hold(self, values: np.ndarray) -> np.ndarray:
        """Whether each of the values lies within, bool of the same shape."""
        above = values > self.low if self.low_open else values >= self.low
        below = values < self.high if self.high_open else values <= self.high
        inside: np.ndarray = above & below
        return inside


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Conditions that a row must meet, each if it is given.

    Attributes:
        versions: every token of the answer was made by versions within.
        text: stands in the answer or in the item of the dataset, in whatever case.
    """

    step: Bounds | None = None
    reward: Bounds | None = None
    prompt: int | None = None
    versions: Bounds | None = None
    text: str = ""

    def holds(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row, :data:`ROW` (rows,), meets all but ``text``, bool (rows,)."""
        met = np.ones(len(rows), bool)
        if self.step is not None:
            met &= self.step.hold(rows["step"])
        if self.reward is not None:
            met &= self.reward.hold(rows["reward"])
        if self.prompt is not None:
            met &= rows["prompt"] == self.prompt
        if self.versions is not None:
            met &= self.versions.hold(rows["first_version"]) & self.versions.hold(rows["last_version"])
        return met


def in_order(rows: np.ndarray, key: Key | None, *, reverse: bool = False) -> np.ndarray:
    """Rows with the highest first, those that are equal in the order of training; in that order without a key.

    Args:
        reverse: the lowest first; without a key, the newest first.
    """
    if key is None:
        return rows[::-1] if reverse else rows
    values = rows[key] if reverse else -rows[key].astype(np.float64)
    return rows[np.argsort(values, kind="stable")]
