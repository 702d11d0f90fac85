"""When leases run out, by a clock that only goes while the ledger is asked."""

from __future__ import annotations

from hpcrl.dataplane.ledger.records import ProcessRecord

# The ledger must be asked at least this often; what a gap is longer, leases last longer [s].
TICK_S = 1.0


class LeaseClock:
    """Leases of a process on a stream last until it was silent for as long as it said.

    A ledger whose process was stopped or killed cannot have heard anybody, so the clock does not count more than
    :data:`TICK_S` between two looks at it, and whoever held leases at a restart counts as heard just then.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._last: float | None = None
        self._heard: dict[str, float] = {}

    def advance(self, now: float) -> None:
        """It is ``now`` [Unix s]; going back is no error."""
        if self._last is not None:
            self.now += min(max(0.0, now - self._last), TICK_S)
        self._last = now

    def hear(self, who: str) -> None:
        """A process has given a sign of life."""
        self._heard[who] = self.now

    def silence(self, who: str) -> float:
        """How long a process has given no sign of life [s]."""
        return self.now - self._heard.get(who, 0.0)

    def due(self, processes: dict[str, ProcessRecord], draws: dict[str, dict[str, None]]) -> list[tuple[str, str]]:
        """Processes and streams whose leases have run out.

        Args:
            draws: by stream, who is a member of any draw.
        """
        return [
            (who, stream)
            for who, process in processes.items()
            for stream, seconds in process.lease_s.items()
            if self.silence(who) > seconds and (process.held.get(stream) or who in draws[stream])
        ]

    def next_due(self, processes: dict[str, ProcessRecord], draws: dict[str, dict[str, None]]) -> float:
        """Seconds until leases run out if nobody says a word; infinite if there are none."""
        left = [
            seconds - self.silence(who)
            for who, process in processes.items()
            for stream, seconds in process.lease_s.items()
            if process.held.get(stream) or who in draws[stream]
        ]
        return max(0.0, min(left)) if left else float("inf")
