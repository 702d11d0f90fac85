"""A folder on the node's own disk for compiled kernels, which the next run on this node finds again."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_PLACE = Path("/var/tmp")


def kernel_folder(named: str = "", place: Path = _PLACE) -> Path:
    """The folder, made if it is not there.

    What lies in it is loaded as code, so one that others could write to is not used; then there is a new one for this process
    alone.

    Args:
        named: one that a person chose.
        place: where else to have one of this user's own.
    """
    folder = Path(named) if named else place / f"hpcrl-{os.getuid()}" / "kernels"
    try:
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, exist_ok=True)
        if why := _why_not(folder) or (None if named else _why_not(folder.parent)):
            raise PermissionError(why)
    except OSError as error:
        fresh = Path(tempfile.mkdtemp(prefix="hpcrl-kernels-"))
        log.warning(
            "compiled kernels are kept in %s, for this process alone, since %s cannot be used: %s", fresh, folder, error
        )
        return fresh
    return folder


def _why_not(folder: Path) -> str | None:
    held = folder.lstat()
    if not stat.S_ISDIR(held.st_mode):
        return f"{folder} is no folder"
    if held.st_uid != os.getuid():
        return f"{folder} belongs to user {held.st_uid}"
    if held.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {folder} (mode {stat.filemode(held.st_mode)})"
    return None
