"""What only Linux gives: a child that ends with its parent, and a sleep that ends with a child."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, however it ends.

    Call it first thing; a parent that ended before is noticed too.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def sleep_until_an_end(pids: Iterable[int], seconds: float) -> None:
    """Sleep so long, or until one of these processes has ended.

    Args:
        pids: children of this process that it has not waited for.
    """
    poll = select.poll()
    with ExitStack() as stack:
        try:
            for pid in pids:
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        except OSError:
            # A kernel before 5.3, or too many open files.
            time.sleep(seconds)
            return
        poll.poll(seconds * 1000)
