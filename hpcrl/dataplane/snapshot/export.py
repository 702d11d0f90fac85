"""Rows of a run as one file: HDF5 in the layout of snapshots, or JSON lines."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.dataplane.packing import unpack
from hpcrl.dataplane.snapshot.layout import LABELS, SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.write import Compression, write_rows
from hpcrl.recipe import Column, Stream
from hpcrl.run.atomic import sync


def export_hdf5(
    columns: Mapping[str, tuple[Column, ...]],
    blocks: Iterable[SavedBlock],
    path: Path,
    *,
    about: Mapping[str, str | int | float],
    progress: Callable[[int], None],
    compression: Compression = "none",
) -> int:
    """Write blocks to one file of rows; the number of rows.

    Args:
        columns: of each stream.
        about: attributes of the file.
        progress: hears how many further rows are done.

    Raises:
        SnapshotError: the file cannot be written, or the blocks not be read; nothing is left of it.
    """
    declared = [Stream(name=name, columns=of_stream) for name, of_stream in columns.items()]
    counts = write_rows(path, declared, _counted(blocks, progress), about=about, compression=compression)
    return sum(count.rows for count in counts.values())


def export_jsonl(
    columns: Mapping[str, tuple[Column, ...]],
    blocks: Iterable[SavedBlock],
    path: Path,
    *,
    progress: Callable[[int], None],
) -> int:
    """Write one JSON object a row: ``stream``, ``row``, ``labels``, and ``columns``, those that were filled.

    What JSON has no number for stands as ``"nan"``, ``"inf"`` and ``"-inf"``. Arguments and errors as :func:`export_hdf5`.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    rows = 0
    by_name = {stream: {column.name: column for column in of_stream} for stream, of_stream in columns.items()}
    try:
        with open(beside, "x", encoding="ascii") as file:
            for block in _counted(blocks, progress):
                for record in _records(block, by_name[block.stream]):
                    file.write(json.dumps(record, allow_nan=False) + "\n")
                rows += block.rows
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        sync(path.parent)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return rows


def plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, str):
        return value
    found = value.tolist()
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return found
    return [_number(item) for item in found] if isinstance(found, list) else _number(found)


def _counted(blocks: Iterable[SavedBlock], progress: Callable[[int], None]) -> Iterator[SavedBlock]:
    for block in blocks:
        yield block
        progress(block.rows)


def _records(block: SavedBlock, columns: dict[str, Column]) -> Iterator[dict[str, Any]]:
    data = {name: unpack(block.stream, columns[name], packed)[1] for name, packed in block.columns.items()}
    labels = {name: values for name in LABELS if (values := getattr(block.labels, name))}
    for row in range(block.rows):
        yield {
            "stream": block.stream,
            "row": block.first + row,
            "labels": {name: values[row] for name, values in labels.items()},
            "columns": {name: plain(values[row]) for name, values in data.items()},
        }


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
