"""What a supervisor hears: signals from Slurm or from a person, kept until they are asked for."""

from __future__ import annotations

import signal
from collections.abc import Sequence


class Heard:
    """Signals since the last look."""

    def __init__(self) -> None:
        self._number: signal.Signals | None = None
        self.ever = False

    def hear(self, numbers: Sequence[signal.Signals]) -> None:
        """Keep these signals from now on."""
        for number in numbers:
            signal.signal(number, self._keep)

    def take(self) -> str | None:
        """A signal in words, once."""
        number, self._number = self._number, None
        return None if number is None else f"{number.name} to the job"

    def _keep(self, number: int, _: object) -> None:
        self._number, self.ever = signal.Signals(number), True
