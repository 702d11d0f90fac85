"""Writes blocks of rows to one HDF5 file, whole or not at all, in bounded memory."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import h5py

from hpcrl.dataplane.snapshot.gather import Counts, StreamWriter
from hpcrl.dataplane.snapshot.layout import KIND, LAYOUT, SavedBlock, SnapshotError, encoded
from hpcrl.dataplane.snapshot.sink import Sink
from hpcrl.recipe import Stream
from hpcrl.run.atomic import sync
from hpcrl.run.errors import host

Compression = Literal["none", "lzf", "gzip"]

_FILTERS: dict[Compression, dict[str, object]] = {
    "none": {},
    "lzf": {"compression": "lzf", "shuffle": True},
    "gzip": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
}


def write_rows(
    path: Path,
    streams: Sequence[Stream],
    blocks: Iterable[SavedBlock],
    *,
    about: Mapping[str, str | int | float] | None = None,
    compression: Compression = "none",
) -> dict[str, Counts]:
    """Write blocks to a file, which appears when all of it is durable; one that is there already is replaced.

    Only a few MiB of each stream are held at a time, so ``blocks`` may be a generator over more than fits in memory.

    Args:
        streams: the declared columns; blocks of no other stream may come.
        about: attributes of the file.

    Returns:
        By stream, what was written.

    Raises:
        SnapshotError: the disk is full, over its quota or read-only, or a block does not fit its stream. Nothing is left
            beside the file, and an older file of that name is as it was.
        DataPlaneError: the bytes of a block are not those of its column.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with closing(Sink(beside)) as sink:
            counts = _write(sink, streams, blocks, about or {}, compression)
            sink.sync()
        beside.rename(path)
        sync(path.parent)
    except OSError as error:
        raise SnapshotError(_failed(path, beside, error)) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return counts


def _write(
    sink: Sink, streams: Sequence[Stream], blocks: Iterable[SavedBlock], about: Mapping[str, object], compression: Compression
) -> dict[str, Counts]:
    # Read by HDF5 1.10 and later.
    with h5py.File(sink, "w", libver=("v110", "v110")) as file:
        file.attrs.update({"kind": KIND, "layout": LAYOUT, **about})
        group = file.create_group("streams")
        writers = {s.name: StreamWriter(group.create_group(encoded(s.name)), s, _FILTERS[compression]) for s in streams}
        for block in blocks:
            if block.stream not in writers:
                raise SnapshotError(f"block {block.first} is of stream {block.stream!r}, which is not one of {list(writers)}")
            writers[block.stream].add(block)
            sink.check()
        return {name: writer.finish() for name, writer in writers.items()}


def _failed(path: Path, beside: Path, error: Exception) -> str:
    written, free = "0", "?"
    with suppress(OSError):
        written = f"{beside.stat().st_blocks * 512 / 1e6:.1f}"
    with suppress(OSError):
        free = f"{shutil.disk_usage(path.parent).free / 1e6:.1f}"
    return (
        f"{host()}: {path} cannot be written after {written} MB ({error}); {free} MB are free there: "
        "make room, or look at the quota and the mount"
    )
