"""The file system that a run directory would lie on: what hpcrl's atomic files, locks and links need of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hpcrl.cli.checks.finding import Finding
from hpcrl.run.atomic import link, write_text

FREE_GIB = 5.0
SKEW_S = 2.0
SLOW_S = 0.5
LOCK_S = 30.0
ELSEWHERE = "choose a --run-dir on another file system"
# Ends with 0 if it gets the lock, with 3 if another process holds it.
TRY_LOCK = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""


def all_files(folder: Path) -> list[Finding]:
    """Every check of a folder's file system, in a scratch folder that is removed again."""
    folder = folder.absolute()
    if not folder.is_dir():
        return [Finding("directory", "fail", f"{folder} is no directory", "make it, or give another --dir")]
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".hpcrl-doctor-", dir=folder))
    except OSError as error:
        return [Finding("directory", "fail", f"{folder} cannot be written: {error.strerror}", ELSEWHERE)]
    try:
        checks: list[tuple[str, Callable[[Path], Finding]]] = [
            ("atomic rename", check_rename),
            ("fsync", check_fsync),
            ("locks", check_locks),
            ("symbolic links", check_links),
            ("file times", check_times),
        ]
        return [check_space(folder), *(_guarded(name, check, scratch) for name, check in checks)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_space(folder: Path, free: int | None = None) -> Finding:
    """Room for a model and a few saves."""
    held = shutil.disk_usage(folder).free if free is None else free
    what = f"{held / 2**30:.1f} GiB free under {folder}"
    if held < FREE_GIB * 2**30:
        return Finding("free space", "warn", what, f"make room, or {ELSEWHERE}")
    return Finding("free space", "ok", what)


def check_rename(scratch: Path) -> Finding:
    """Replacing a file in one step: a reader sees the old or the new content, never none or half."""
    path = scratch / "marker"
    write_text(path, "old" * 1000)
    write_text(path, "new" * 1000)
    if path.read_text() != "new" * 1000 or len(list(scratch.iterdir())) != 1:
        return Finding("atomic rename", "fail", "a renamed file is not the one that was written", ELSEWHERE)
    return Finding("atomic rename", "ok", "a file is replaced in one step")


def check_fsync(scratch: Path) -> Finding:
    """Whether files and folders can be made durable, and how long that takes."""
    started = time.monotonic()
    for _ in range(5):
        write_text(scratch / "durable", "x" * 4096)
    seconds = (time.monotonic() - started) / 5
    what = f"a small file is durable in {seconds * 1000:.1f} ms"
    if seconds > SLOW_S:
        return Finding("fsync", "warn", what, f"expect slow saves; {ELSEWHERE} if there is a faster one")
    return Finding("fsync", "ok", what)


def check_locks(scratch: Path) -> Finding:
    """Whether a lock of one process keeps another one out, and is free again after."""
    path = scratch / "lock"
    command = [sys.executable, "-c", TRY_LOCK, str(path)]
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = subprocess.run(command, timeout=LOCK_S, capture_output=True, check=False).returncode
    freed = subprocess.run(command, timeout=LOCK_S, capture_output=True, check=False).returncode
    if (held, freed) != (3, 0):
        return Finding(
            "locks",
            "warn",
            "flock does not keep other processes out here",
            "MLflow's database is not safe on this file system: give hpcrl run a --tracking-uri, or mount with flock",
        )
    return Finding("locks", "ok", "flock keeps other processes out")


def check_links(scratch: Path) -> Finding:
    """Whether ``latest`` can point at an attempt and be pointed elsewhere in one step."""
    for name in ("a", "b"):
        (scratch / name).mkdir()
        link(scratch / "latest", name)
    if os.readlink(scratch / "latest") != "b":
        return Finding("symbolic links", "fail", "a link is not replaced", ELSEWHERE)
    return Finding("symbolic links", "ok", "a link is replaced in one step")


def check_times(scratch: Path) -> Finding:
    """Whether the file server's clock and this host's agree."""
    path = scratch / "clock"
    before = time.time()
    path.write_text("x")
    skew = path.stat().st_mtime - before
    if abs(skew) > SKEW_S:
        return Finding(
            "file times", "warn", f"the file server's clock is {skew:+.1f} s off this host's", "let NTP set both clocks"
        )
    return Finding("file times", "ok", "the file server's clock agrees with this host's")


def _guarded(name: str, check: Callable[[Path], Finding], scratch: Path) -> Finding:
    folder = scratch / name.replace(" ", "-")
    try:
        folder.mkdir()
        return check(folder)
    except (OSError, subprocess.SubprocessError) as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return Finding(name, "fail", f"not possible under {scratch.parent}: {error}", ELSEWHERE)
