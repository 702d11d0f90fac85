"""The files of a history: their names, their order, and how a closed one is compressed."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hpcrl.run.atomic import sync

RAW, PACKED = ".events", ".events.gz"


def numbered(folder: Path) -> dict[int, Path]:
    """The history files of a folder by their number, in order; of one in both forms, the compressed."""
    found: dict[int, Path] = {}
    for suffix in (RAW, PACKED):
        for path in folder.glob(f"[0-9]*{suffix}"):
            found[int(path.name.partition(".")[0])] = path
    return dict(sorted(found.items()))


def raw_path(folder: Path, number: int) -> Path:
    """Where a file is written."""
    return folder / f"{number:05d}{RAW}"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file as it was written, whether it is compressed by now or not.

    Raises:
        OSError: it cannot be read.
    """
    if path.name.endswith(RAW):
        try:
            file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            path = path.with_name(path.name.removesuffix(RAW) + PACKED)
    if path.name.endswith(PACKED):
        file = cast(BinaryIO, gzip.open(path, "rb"))  # noqa: SIM115 - closed below
    with file:
        yield file


def compress(path: Path) -> None:
    """Replace a closed file by a compressed one, which appears whole and durable before the other goes.

    Raises:
        OSError: no room; the file stays as it was.
    """
    target = path.with_name(path.name.removesuffix(RAW) + PACKED)
    beside = target.with_name(f".{target.name}")
    try:
        with open(path, "rb") as source, open(beside, "wb") as out:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
        beside.rename(target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)
    path.unlink()
