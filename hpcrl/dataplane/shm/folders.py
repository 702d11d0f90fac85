"""Folders in shared memory: whose they are, and how none is left behind.

::

    ROOT/hpcrl-UID-RUNID/aN/owners/PID.RANDOM     locked by a process of the attempt for as long as it lives
    ROOT/hpcrl-UID-RUNID/aN/GROUP.RANK/LIFE/      segments of one life of one writer
    ROOT/hpcrl-UID-RUNID/aN/weights/              the node's policy weights; see hpcrl.checkpoint.publish.node

Owners are told by a lock, not by pid and start time: the kernel drops it however the process ends, a pid that is used
again does not hold it, and it tells the truth to a process in another container, where pids mean something else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.room import SHARED_MEMORY, choose_root
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host
from hpcrl.run.stop import wait_for

BUSY_S = 60.0
# A node whose shared memory is smaller, as containers' often is, uses its own temporary folder.
LEAST_SHARED_BYTES = 256 << 20
_OWNERS = "owners"


def attempt_folder(run_id: str, attempt: int, root: Path = SHARED_MEMORY) -> Path:
    """Where the segments of an attempt lie on each of its nodes.

    Raises:
        ValueError: the run id is no name of a folder.
    """
    if not re.fullmatch(r"\w[\w.\-]*", run_id, re.ASCII):
        raise ValueError(f"run id {run_id!r} is no name of a folder")
    return root / f"hpcrl-{os.getuid()}-{run_id}" / f"a{attempt}"


def shared_folder(attempt: Attempt) -> Path:
    """Where an attempt keeps what its processes of this node share in memory; the same for all of them.

    Raises:
        DataPlaneError: the node has no room for any.
    """
    root = choose_root(LEAST_SHARED_BYTES, Path(tempfile.gettempdir()))
    return attempt_folder(attempt.run.run_id, attempt.number, root)


@contextlib.contextmanager
def kept_folder(attempt: Attempt) -> Iterator[Path]:
    """:func:`shared_folder`, kept meanwhile; afterwards it is gone, unless another process of the node still needs it.

    Raises:
        DataPlaneError: the node has no room, or the folder cannot be made.
    """
    folder = shared_folder(attempt)
    claim = Claim(folder)
    try:
        yield folder
    finally:
        claim.release()
        remove_attempt(folder)


class Claim:
    """Says that this process lives and belongs to the attempt; holds until :meth:`release` or the process's end.

    Args:
        folder: of the attempt; made if it is not there, mode 0700.

    Raises:
        DataPlaneError: the folder cannot be made, or is another user's.
        DeadlineExceeded: another process removes or claims folders of the run for more than a minute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / _OWNERS / f"{os.getpid()}.{secrets.token_hex(4)}"
        self._descriptor: int | None = None
        try:
            with _locked(folder.parent):
                for made in (folder, folder / _OWNERS):
                    made.mkdir(mode=0o700, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._descriptor, json.dumps({"pid": os.getpid(), "host": host(), "t": time.time()}).encode())
        except OSError as error:
            self.release()
            raise DataPlaneError(
                f"host {host()}: cannot make {folder} for the data plane's shared memory: {error.strerror}; "
                f"see `df {folder.parent.parent}` and `ls -ld {folder.parent}`"
            ) from error

    def release(self) -> None:
        """This process no longer needs the folder. Safe to call twice."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def remove_attempt(folder: Path) -> bool:
    """Remove an attempt's folder unless a process still claims it; returns whether it is gone.

    The last process of a node to end calls it, after it has released its own claim.

    Raises:
        DataPlaneError: the run's folder is another user's.
        DeadlineExceeded: as :class:`Claim`.
    """
    if not folder.parent.is_dir():
        return True
    with _locked(folder.parent):
        gone = not _is_claimed(folder)
        if gone:
            _remove(folder)
    return gone


def sweep(root: Path = SHARED_MEMORY) -> list[Path]:
    """Remove the folders of this user's attempts that no living process claims; returns them.

    Runs whose folders another process makes or removes at this moment are left to it, and what cannot be removed to the
    next sweep.
    """
    removed = []
    for run in sorted(root.glob(f"hpcrl-{os.getuid()}-*")):
        with contextlib.suppress(DataPlaneError, OSError):
            descriptor = _try_lock(run)
            if descriptor is None:
                continue
            with _unlocking(run, descriptor):
                for folder in sorted(run.iterdir()):
                    if not _is_claimed(folder):
                        _remove(folder)
                        removed.append(folder)
    return removed


@dataclass(frozen=True)
class Usage:
    """How many files lie in an attempt's folder, and their bytes, in all and of each ``group.rank``."""

    files: int
    bytes: int
    by_writer: dict[str, int]


def usage(folder: Path) -> Usage:
    """What an attempt has on this node; nothing if the folder is not there."""
    files, by_writer = 0, dict[str, int]()
    for path in folder.glob("**/*"):
        with contextlib.suppress(FileNotFoundError):
            status, who = path.lstat(), path.relative_to(folder).parts[0]
            if stat.S_ISREG(status.st_mode) and who != _OWNERS:
                by_writer[who] = by_writer.get(who, 0) + status.st_blocks * 512
                files += 1
    return Usage(files, sum(by_writer.values()), by_writer)


@contextlib.contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Keep others from making and removing attempts of a run meanwhile; its folder is made, and removed if empty after."""

    def lock() -> int | None:
        with contextlib.suppress(FileNotFoundError):
            # Whoever removes it may do so at any moment, even between the steps of Path.mkdir(exist_ok=True).
            with contextlib.suppress(FileExistsError):
                run.mkdir(mode=0o700)
            return _try_lock(run)
        if not run.parent.is_dir():
            raise DataPlaneError(
                f"host {host()}: there is no directory {run.parent} for shared memory; make it or name another"
            )
        return None

    with _unlocking(run, wait_for(f"the lock of {run}", lock, seconds=BUSY_S)):
        yield


@contextlib.contextmanager
def _unlocking(run: Path, descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            run.rmdir()
        os.close(descriptor)


def _try_lock(run: Path) -> int | None:
    """A descriptor that locks the run's folder; None while another process has the lock, or has just removed the folder."""
    descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise DataPlaneError(
                f"host {host()}: {run} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}, expected "
                f"user {os.getuid()} and mode 700; somebody else made it: choose another directory for shared memory"
            )
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(status, os.stat(run)):
                stack.pop_all()
                return descriptor
    return None


def _is_claimed(folder: Path) -> bool:
    """Whether a living process claims it; records of dead ones are removed."""
    claimed = False
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in list((folder / _OWNERS).iterdir()):
            claimed = _is_locked(path) or claimed
    return claimed


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)
