"""How often a process that was killed is started again in place."""

from __future__ import annotations

from dataclasses import dataclass, field

# A process that is killed so often so soon is so by what it does, and not by accident.
BURST, BURST_S = 5, 10.0
# Of a process of the data plane.
QUEUE_LIMIT = 100


@dataclass
class Restarts:
    """Counts the restarts of one process.

    Attributes:
        limit: the most in an attempt.
        burst: the most within :data:`BURST_S` seconds.
        fatal: one death more fails the run, not just its attempt.
    """

    limit: int
    burst: int = BURST
    fatal: bool = False
    _times: list[float] = field(default_factory=list)

    def take(self, now: float) -> str | None:
        """Take one at a time of a monotonic clock [s]; a string says why there is none."""
        if len(self._times) >= self.limit:
            if not self._times:
                return "is not started again in place"
            return f"was started again {len(self._times)} times in this attempt, which is the limit"
        recent = sum(now - t <= BURST_S for t in self._times)
        if recent >= self.burst:
            return f"was started again {recent} times within {BURST_S:g} s, which is the limit"
        self._times.append(now)
        return None
