"""Signals of a run's processes: which ones mean "save now", and how none is lost before a process can hear it.

Slurm sends SIGTERM to every process of a step at once, so it must not end the services that others still save through: they
end on :data:`STOP` alone, which only an ignitor sends.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrl.run.stop import StopFlag

STOP = signal.SIGUSR2
# From Slurm, or from a person.
FROM_OUTSIDE = (signal.SIGTERM, signal.SIGUSR1)
_ALL = (*FROM_OUTSIDE, STOP)


@contextmanager
def held_back() -> Iterator[None]:
    """Processes that are started meanwhile begin with all of them held back, until they call :func:`hear`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear(stop: StopFlag, *, service: bool) -> None:
    """Have signals set a flag from now on; for a service only the ignitor's own."""
    for number in _ALL:
        if service and number != STOP:
            signal.signal(number, signal.SIG_IGN)
        else:
            signal.signal(number, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)
