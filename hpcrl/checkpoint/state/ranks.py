"""What a save asks of the trainer's ranks."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Ranks(Protocol):
    """The ranks that hold the state together; :class:`hpcrl.engines.titan.world.Ranks`. Every method is a collective."""

    rank: int
    size: int

    def say(self, number: int) -> int:
        """The number that rank 0 gives, on every rank."""

    def reduce_max(self, values: np.ndarray) -> np.ndarray:
        """Maximum over ranks of each entry, on every rank."""


class Alone:
    """A world of one."""

    rank, size = 0, 1

    def say(self, number: int) -> int:
        """The number itself."""
        return number

    def reduce_max(self, values: np.ndarray) -> np.ndarray:
        """The values themselves."""
        return values
