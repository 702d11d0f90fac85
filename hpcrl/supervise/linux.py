"""What only Linux gives: a child that ends with its parent, a sleep that ends with a child, orphans taken in, another name."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Of /proc/self/stat, counted from 0 behind the name: where the command line lies in memory.
_ARG_START, _ARG_END = 45, 46


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


def adopt_orphans(adopt: bool) -> None:
    """Whether what a descendant of this process has started becomes this one's child when that descendant ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def reap_orphans(own: Collection[int]) -> None:
    """Take note of the ends of all children but those that somebody else of this process waits for.

    Args:
        own: pids of the latter. One of them that has ended hides further ends until it was waited for.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def reap_group(group: int) -> None:
    """Take note of the ends of all children in a process group."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def show_command(arguments: Sequence[str]) -> None:
    """Have ``ps`` show another command line for this process, as far as it fits into the place of the one it has."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, size = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    if not start:
        return
    # What is left becomes blanks at the end of the last argument.
    ctypes.memmove(start, "\0".join(arguments).encode()[: size - 1].ljust(size - 1), size - 1)
