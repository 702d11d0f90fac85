"""One cluster at a time is started or stopped on a host, so that two never choose the same ports or install at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrl.run.stop import wait_for


@contextmanager
def host_lock(*, seconds: float = 600.0) -> Iterator[None]:
    """Hold the host's lock. It is a name in the kernel: no file is left, and it is free when its holder dies.

    Raises:
        DeadlineExceeded: another process holds it for too long.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        wait_for("another start or stop of a test cluster on this host", lambda: _bind(holder), seconds=seconds)
        yield


def _bind(holder: socket.socket) -> bool | None:
    try:
        holder.bind("\0hpcrl-slurm-cluster")
    except OSError:
        return None
    return True
