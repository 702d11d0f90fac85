"""Files that are there whole or not at all: written beside, fsynced, renamed; and the folder fsynced after."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrl.run.failpoints import reach


def write_bytes(
    path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True, written: Callable[[], None] | None = None
) -> None:
    """Replace a file in one step. A reader sees the old content or the new, even after a crash.

    Args:
        durable: False for a file that need not outlive its machine.
        written: called once the content is durable, before the rename.

    Raises:
        OSError: the disk is full or read-only; the old file is untouched and nothing is left beside it.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        reach("disk.create", path)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            reach("disk.write", path, len(data))
            file.write(data)
            file.flush()
            if durable:
                reach("disk.fsync", path)
                os.fsync(file.fileno())
        if written is not None:
            written()
        reach("disk.rename", path)
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """:func:`write_bytes` in UTF-8."""
    write_bytes(path, text.encode(), mode=mode)


def write_json(path: Path, value: Any, *, durable: bool = True, written: Callable[[], None] | None = None) -> None:
    """:func:`write_bytes` of indented JSON in the given key order."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode(), durable=durable, written=written)


def link(path: Path, target: str) -> None:
    """Point a relative symbolic link at ``target`` in one step."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    beside.symlink_to(target)
    beside.rename(path)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
