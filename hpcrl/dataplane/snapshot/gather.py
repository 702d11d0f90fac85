"""Gathers the blocks of one stream and appends them to its data sets, to all of them at once so that they stay in step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import h5py
import msgspec
import numpy as np

from hpcrl.dataplane.interface import ColumnData
from hpcrl.dataplane.packing import unpack
from hpcrl.dataplane.snapshot.layout import LABELS, SavedBlock, SnapshotError, encoded, schema_to_json, storage, varied
from hpcrl.recipe import Column, Stream

# Bytes that a stream gathers before they are written.
GATHER = 4 << 20
# Bytes of one chunk of a data set in the file: of elements of rows, and of what has one value a row or a block.
CHUNK, SMALL_CHUNK = 64 << 10, 8 << 10


class Counts(msgspec.Struct, frozen=True):
    """How much of a stream a file holds; ``bytes``: of the packed columns."""

    rows: int = 0
    blocks: int = 0
    bytes: int = 0


class StreamWriter:
    """One stream of a file that is being written.

    Args:
        group: of the stream, empty.
        filters: of HDF5, for every data set.
    """

    def __init__(self, group: h5py.Group, stream: Stream, filters: Mapping[str, object]) -> None:
        self._stream = stream
        self._columns = {column.name: (column, f"columns/{encoded(column.name)}") for column in stream.columns}
        self._rows = self._blocks = self._bytes = self._gathered = 0
        group.attrs.update({"name": stream.name, "schema": schema_to_json(stream.columns)})
        self._sets = {
            name: group.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(chunk // dtype.itemsize,), **filters)
            for name, dtype, chunk in self._data_sets()
        }
        # What waits to be written: arrays that follow each other, and single values.
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._items: dict[str, list[int]] = {name: [] for name in self._sets if not name.endswith("/offsets")}
        self._lengths: dict[str, list[int]] = {at: [] for column, at in self._columns.values() if varied(column)}
        # Where the next row of a column begins.
        self._ends = dict.fromkeys(self._lengths, 0)
        for at in self._lengths:
            self._append_to(f"{at}/offsets", np.zeros(1, np.int64))

    def add(self, block: SavedBlock) -> None:
        """Take a block; nothing aliases its columns afterwards.

        Raises:
            SnapshotError: it does not fit the stream.
            DataPlaneError: the bytes of a column are not those of that column.
        """
        where = f"stream {self._stream.name!r}, block {block.first}"
        if unknown := sorted(set(block.columns) - set(self._columns)):
            raise SnapshotError(f"{where}: column {unknown[0]!r} is not one of {list(self._columns)}")
        if block.rows < 1:
            raise SnapshotError(f"{where}: expected at least one row, got {block.rows}")
        row_ids = np.arange(block.first, block.first + block.rows, dtype=np.int64)
        self._rows, self._blocks = self._rows + block.rows, self._blocks + 1
        self._gather("row_ids", row_ids)
        self._items["block_ends"].append(self._rows)
        for label in LABELS:
            values = getattr(block.labels, label)
            if values and len(values) != block.rows:
                raise SnapshotError(f"{where}: {len(values)} labels {label!r} for {block.rows} rows")
            self._items[f"labels/{label}/values"] += values or [0] * block.rows
            self._items[f"labels/{label}/present"].append(bool(values))
        for column, at in self._columns.values():
            self._add_column(where, column, at, row_ids, block.columns.get(column.name))
        if self._gathered >= GATHER:
            self._flush()

    def finish(self) -> Counts:
        """Write what is left."""
        self._flush()
        return Counts(self._rows, self._blocks, self._bytes)

    def _add_column(self, where: str, column: Column, at: str, row_ids: np.ndarray, packed: np.ndarray | None) -> None:
        self._items[f"{at}/present"].append(packed is not None)
        if packed is None:
            values, lengths = np.zeros(0 if varied(column) else len(row_ids), storage(column)), [0] * len(row_ids)
        else:
            self._bytes += packed.nbytes
            found, data = unpack(self._stream.name, column, packed, copy=False)
            if len(found) != len(row_ids) or (found != row_ids).any():
                raise SnapshotError(f"{where}, column {column.name!r}: the bytes are those of rows {found[0]} to {found[-1]}")
            values, lengths = _flat(column, data)
        self._gather(f"{at}/values", values)
        if varied(column):
            self._lengths[at] += lengths

    def _gather(self, name: str, part: np.ndarray) -> None:
        self._arrays.setdefault(name, []).append(part)
        # Small parts weigh more than their bytes.
        self._gathered += part.nbytes + 128

    def _flush(self) -> None:
        for name, parts in self._arrays.items():
            self._append_to(name, np.concatenate(parts))
        for name, items in self._items.items():
            if items:
                self._append_to(name, np.array(items, self._sets[name].dtype))
                items.clear()
        for at, lengths in self._lengths.items():
            if lengths:
                ends = np.cumsum(np.array(lengths, np.int64)) + self._ends[at]
                self._append_to(f"{at}/offsets", ends)
                self._ends[at] = int(ends[-1])
                lengths.clear()
        self._arrays, self._gathered = {}, 0

    def _append_to(self, name: str, values: np.ndarray) -> None:
        data_set = self._sets[name]
        start = data_set.shape[0]
        data_set.resize((start + len(values),))
        data_set[start:] = values

    def _data_sets(self) -> list[tuple[str, np.dtype, int]]:
        """Name, type and bytes of a chunk."""
        number, flag = np.dtype(np.int64), np.dtype(bool)
        sets: list[tuple[str, np.dtype, int]] = [("row_ids", number, SMALL_CHUNK), ("block_ends", number, SMALL_CHUNK)]
        for label in LABELS:
            sets += [(f"labels/{label}/values", number, SMALL_CHUNK), (f"labels/{label}/present", flag, SMALL_CHUNK)]
        for column, at in self._columns.values():
            sets.append((f"{at}/values", storage(column), CHUNK if varied(column) else SMALL_CHUNK))
            sets.append((f"{at}/present", flag, SMALL_CHUNK))
            if varied(column):
                sets.append((f"{at}/offsets", number, SMALL_CHUNK))
        return sets


def _flat(column: Column, data: ColumnData) -> tuple[np.ndarray, list[int]]:
    """A column's values one after the other, which alias nothing, and the length of each row if rows differ in it."""
    if column.dtype == "str":
        texts = [text.encode("utf-8", "surrogatepass") for text in cast("list[str]", data)]
        return np.frombuffer(b"".join(texts), np.uint8), [len(text) for text in texts]
    if column.ragged:
        return np.concatenate(cast("list[np.ndarray]", data)), [len(row) for row in data]
    return cast("np.ndarray", data).copy(), []
