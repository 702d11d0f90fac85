"""Locks on files of one node, which fall with their holder."""

from __future__ import annotations

import fcntl


def try_lock(descriptor: int, kind: int) -> bool | None:
    """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) if that can be done at once; else None, for :func:`wait_for`."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return True
