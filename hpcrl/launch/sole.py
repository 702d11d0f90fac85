"""One command at a time works at a run of this machine."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed, host
from hpcrl.run.locks import try_lock


@contextmanager
def at_work(run: RunDirectory) -> Iterator[None]:
    """Nobody else is at work at the run inside. It falls with this process, and with those that it forks.

    Raises:
        CheckFailed: somebody is, or the file ``RUN/at-work`` cannot be written.
    """
    path = run.path / "at-work"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CheckFailed([f"{path} cannot be written: {error.strerror}"]) from error
    try:
        if try_lock(descriptor, fcntl.LOCK_EX) is None:
            raise CheckFailed(
                [f"run {run.path} is at work already{_by(os.read(descriptor, 4096))}; wait for its end, or end it"]
            )
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "host": host()}).encode())
        yield
    finally:
        os.close(descriptor)


def _by(text: bytes) -> str:
    try:
        record = json.loads(text)
        return f", by process {record['pid']} on {record['host']}"
    except (ValueError, KeyError, TypeError):
        return ""
