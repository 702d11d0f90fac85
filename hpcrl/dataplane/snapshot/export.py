"""A snapshot as one file, merged over the nodes: HDF5 in the same layout, or JSON lines."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.dataplane.packing import unpack
from hpcrl.dataplane.snapshot.layout import LABELS, SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.merge import Merged
from hpcrl.dataplane.snapshot.read import Snapshot
from hpcrl.dataplane.snapshot.write import Compression, write_rows
from hpcrl.recipe import Column, Stream
from hpcrl.run.atomic import sync


def export_hdf5(
    snapshot: Snapshot,
    merged: Merged,
    streams: Sequence[str],
    path: Path,
    *,
    progress: Callable[[int], None],
    compression: Compression = "none",
) -> int:
    """Write streams of a snapshot to one file of rows; the number of rows.

    Args:
        progress: hears how many further rows are done.

    Raises:
        SnapshotError: the file cannot be written, or the snapshot not read; nothing is left of it.
    """
    manifest = snapshot.manifest
    about: dict[str, str | int | float] = {
        "run_id": manifest.run_id,
        "attempt": manifest.attempt,
        "number": manifest.number,
        "t": manifest.t,
        "policy_version": manifest.policy_version,
    }
    declared = [Stream(name=name, columns=merged.columns[name]) for name in streams]
    counts = write_rows(path, declared, _all(merged, streams, progress), about=about, compression=compression)
    return sum(count.rows for count in counts.values())


def export_jsonl(merged: Merged, streams: Sequence[str], path: Path, *, progress: Callable[[int], None]) -> int:
    """Write one JSON object a row: ``stream``, ``row``, ``labels``, and ``columns``, those that were filled.

    What JSON has no number for stands as ``"nan"``, ``"inf"`` and ``"-inf"``.

    Args:
        progress: hears how many further rows are done.

    Raises:
        SnapshotError: as :func:`export_hdf5`.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    rows = 0
    try:
        with open(beside, "x", encoding="ascii") as file:
            for block in _all(merged, streams, progress):
                columns = {column.name: column for column in merged.columns[block.stream]}
                for record in _records(block, columns):
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


def _all(merged: Merged, streams: Sequence[str], progress: Callable[[int], None]) -> Iterator[SavedBlock]:
    for block in itertools.chain.from_iterable(merged.blocks(name) for name in streams):
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
            "columns": {name: _plain(values[row]) for name, values in data.items()},
        }


def _plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, str):
        return value
    plain = value.tolist()
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return plain
    return [_number(item) for item in plain] if isinstance(plain, list) else _number(plain)


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
