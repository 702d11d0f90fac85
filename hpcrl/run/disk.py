"""What checkpoints do to a file system, with the faults of shared ones in mind: races, late names, full disks.

Each operation reaches a failpoint (:mod:`hpcrl.run.failpoints`), so that tests can have it fail.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from hpcrl.run.atomic import sync
from hpcrl.run.digest import CHUNK, Digest, method_of
from hpcrl.run.errors import HpcrlError, host
from hpcrl.run.failpoints import reach
from hpcrl.run.stop import back_off

T = TypeVar("T")

PIECE = 8 << 20
# A name that another node made is seen by then, and one that it removes is gone.
PATIENCE_S = 10.0
_RACES = (errno.EEXIST, errno.ESTALE, errno.ENOTEMPTY)
_LATE = (errno.ENOENT, errno.ESTALE)
_ADVICE = {
    errno.ENOSPC: "the disk is full: make room on it",
    errno.EDQUOT: "your quota is used up: make room, or ask for more",
    errno.EFBIG: "the file may not become that large: raise the limit of the file size (ulimit -f)",
    errno.EROFS: "the file system is read-only: ask who runs it",
    errno.EACCES: "you may not write there: look at its mode and owner",
    errno.EIO: "the device or the file system failed: ask who runs it",
}


class DiskError(HpcrlError):
    """A file cannot be written or read; says who tried, where and which file.

    Attributes:
        code: the error's number.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class FileDamaged(HpcrlError):
    """A file is not what was written; names it."""


class FileRecord(msgspec.Struct, frozen=True):
    """A file as it was written.

    Attributes:
        name: within its folder.
        size: [bytes].
        digest: ``method:hexadecimal``.
    """

    name: str
    size: int
    digest: str


def explain(who: str, what: str, error: OSError, path: Path | None = None) -> DiskError:
    """The error that a person sees.

    Args:
        who: such as ``trainer rank 3``.
        what: could not be done, such as ``the state of step 12 cannot be written``.
        path: in hand, where the error names none.
    """
    where = error.filename or path or "an open file"
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return DiskError(f"{who} on {host()}: {what}: {where}: {error.strerror or error}{advice}", error.errno or 0)


def make_folder(path: Path, *, new: bool = False, durable: bool = True) -> None:
    """Make a folder, its parents too, and its name durable.

    Args:
        new: it must not be there yet.
        durable: False for one that need not outlive its machine.

    Raises:
        OSError: it cannot be made; ``FileExistsError`` where it is there and must be new.
    """
    reach("disk.mkdir", path)
    try:
        path.mkdir(exist_ok=not new)
    except FileNotFoundError:
        # Another process may make the parents at the same time.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=not new)
    if durable:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    reach("disk.fsync", path)
    sync(path)


class FileWriter:
    """A new file that is written in pieces and made durable; gone again if that fails.

    Attributes:
        size: bytes so far.

    Raises:
        OSError: on any call, where the file system fails; the error names the file.
    """

    def __init__(self, path: Path, *, seconds: float = PATIENCE_S) -> None:
        def create() -> int:
            reach("disk.create", path)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

        self._path, self.size, self._digest = path, 0, Digest()
        self._failure: OSError | None = None
        self._file = _patient(create, _RACES, seconds)

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes; returns how many."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._digest.update(piece)
            while len(piece):
                done = self._do("disk.write", os.write, piece)
                self.size += done
                piece = piece[done:]
        return len(view)

    def finish(self, *, durable: bool = True) -> FileRecord:
        """Make it durable, unless that is not asked for, and close it."""
        if durable:
            self._do("disk.fsync", lambda file, _: os.fsync(file), b"")
        os.close(self._file)
        self._file = -1
        return FileRecord(self._path.name, self.size, self._digest.text())

    def give_up(self) -> None:
        """Close and remove it, as far as the file system lets it. Safe to call twice."""
        file, self._file = self._file, -1
        if file < 0:
            return
        with suppress(OSError):
            os.close(file)
        with suppress(OSError):
            self._path.unlink()

    def _do(self, point: str, call: Callable[[int, bytes | memoryview], T], piece: bytes | memoryview) -> T:
        if self._failure is not None:
            # The descriptor may be another file's by now.
            raise self._failure
        try:
            reach(point, self._path, len(piece))
            return call(self._file, piece)
        except OSError as error:
            self.give_up()
            self._failure = OSError(error.errno, error.strerror, str(self._path))
            raise self._failure from error


def write_file(
    path: Path, chunks: Iterable[bytes | memoryview], *, durable: bool = True, seconds: float = PATIENCE_S
) -> FileRecord:
    """Write a new file in pieces of at most 8 MiB and make it durable.

    Args:
        durable: False for a file that need not outlive its machine.
        seconds: how long a file of that name may still be there, because another process is removing it.

    Raises:
        OSError: it cannot be written, and nothing of it is left; ``FileExistsError`` where the name is taken.
    """
    file = FileWriter(path, seconds=seconds)
    for chunk in chunks:
        file.write(chunk)
    return file.finish(durable=durable)


def read_file(path: Path, *, seconds: float = 0.0) -> bytes:
    """All of a small file.

    Args:
        seconds: how long it may take to be seen, where another node has just written it.

    Raises:
        OSError: it cannot be read.
    """

    def read() -> bytes:
        reach("disk.open", path)
        return path.read_bytes()

    return _patient(read, _LATE, seconds)


def rename(path: Path, target: Path, *, durable: bool = True) -> None:
    """Rename, replacing a file or an empty folder, and make both names durable.

    Args:
        durable: False where the old names may come back if the machine fails.

    Raises:
        OSError: it cannot be done.
    """
    reach("disk.rename", path)
    os.rename(path, target)
    if not durable:
        return
    sync_path(target.parent)
    if path.parent != target.parent:
        sync_path(path.parent)


def remove_tree(path: Path, *, seconds: float = PATIENCE_S) -> None:
    """Remove a file or folder with all in it, also while another process removes or adds to it.

    Raises:
        OSError: it cannot be removed.
    """

    def remove() -> None:
        reach("disk.unlink", path)
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            # Another process was faster with a part of it.
            if path.exists():
                raise

    _patient(remove, (*_RACES, errno.ENOENT), seconds)


def remove_marked(path: Path, marker: str) -> None:
    """Remove a folder that a file of that name in it says to be whole, or what an earlier removal of one has left.

    Out of sight first, as ``.NAME.old``, so that a reader never meets half of it.

    Raises:
        OSError: it cannot be removed.
    """
    if not path.name.startswith("."):
        hidden = path.with_name(f".{path.name}.old")
        rename(path, hidden)
        reach("prune.hidden", path)
        path = hidden
    (path / marker).unlink(missing_ok=True)
    remove_tree(path)


def check_file(folder: Path, record: FileRecord, *, seconds: float = 0.0) -> None:
    """Compare a file with what was written.

    Args:
        seconds: how long it may take to be seen.

    Raises:
        FileDamaged: it is another, is missing, or cannot be read.
    """
    path = folder / record.name

    def compare() -> None:
        reach("disk.open", path)
        with open(path, "rb", buffering=0) as file:
            if (size := os.fstat(file.fileno()).st_size) != record.size:
                raise FileDamaged(f"{path} is damaged: it has {size} bytes, {record.size} were written")
            digest = Digest(method_of(record.digest))
            while piece := file.read(CHUNK):
                digest.update(piece)
        if digest.text() != record.digest:
            raise FileDamaged(f"{path} is damaged: its checksum is {digest.text()}, {record.digest} was written")

    try:
        _patient(compare, _LATE, seconds)
    except (OSError, ValueError) as error:
        raise FileDamaged(f"{path} cannot be checked: {error}") from error


def total_bytes(records: Sequence[FileRecord]) -> int:
    """Bytes of files together."""
    return sum(record.size for record in records)


def _patient(call: Callable[[], T], codes: tuple[int, ...], seconds: float) -> T:
    """The call's result, tried again after these errors until the deadline."""
    deadline, pauses = time.monotonic() + seconds, back_off()
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in codes or time.monotonic() >= deadline:
                raise
        time.sleep(min(next(pauses), max(0.0, deadline - time.monotonic())))
