"""What a supervisor hears: that it is to save and end, kept until it is asked for."""

from __future__ import annotations

import signal
from collections.abc import Sequence


class Heard:
    """What was heard since the last look.

    Attributes:
        ever: whether there was anything at all.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self.ever = False

    def hear(self, numbers: Sequence[signal.Signals]) -> None:
        """Keep these signals from now on."""
        for number in numbers:
            signal.signal(number, self._keep)

    def tell(self, reason: str) -> None:
        """Keep what came in another way than by a signal; from any thread."""
        self._reason, self.ever = reason, True

    def take(self) -> str | None:
        """Why to save and end, once."""
        reason, self._reason = self._reason, None
        return reason

    def _keep(self, number: int, _: object) -> None:
        self.tell(f"{signal.Signals(number).name} to the job")
