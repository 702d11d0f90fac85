"""The data sets of one stream in an open file, each checked against the others before it is used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from hpcrl.dataplane.interface import ColumnData
from hpcrl.dataplane.snapshot.layout import SnapshotError, encoded, schema_from_json, storage, varied
from hpcrl.recipe import Column


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what HDF5 and NumPy raise over a bad file into :class:`SnapshotError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} is not there (any more)") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{path} cannot be read or is damaged: {error}") from error


class DataSets:
    """One stream's. Bounds, offsets and row ids are held once they were needed (8 bytes a row each); values never are.

    Every method raises :class:`SnapshotError` when the file turns out to be damaged.

    Attributes:
        name: the stream's.
        columns: by name.
    """

    def __init__(self, path: Path, group: h5py.Group) -> None:
        self.path, self._group = path, group
        self.name = str(group.attrs["name"])
        self.columns: dict[str, Column] = {column.name: column for column in schema_from_json(group.attrs["schema"])}
        self._offsets: dict[str, np.ndarray] = {}
        self._present: dict[str, np.ndarray] = {}
        self.row_ids = self.load("row_ids", np.dtype(np.int64))
        # Rows of block b are bounds[b] to bounds[b + 1].
        self.bounds = np.concatenate([np.zeros(1, np.int64), self.load("block_ends", np.dtype(np.int64))])
        if self.bounds[-1] != len(self.row_ids) or (np.diff(self.bounds) < 1).any():
            raise self._damaged("block_ends")

    def column(self, name: str) -> Column:
        """The column of that name; :class:`SnapshotError` if there is none."""
        if name not in self.columns:
            raise SnapshotError(f"{self.path}: stream {self.name!r} has no column {name!r}; it has {list(self.columns)}")
        return self.columns[name]

    def column_present(self, name: str) -> np.ndarray:
        """Whether the column of each block was filled, bool (blocks,)."""
        return self._present_at(f"columns/{encoded(name)}")

    def label(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values, int64 (rows,), and whether each block has that label, bool (blocks,)."""
        return self.load(f"labels/{name}/values", np.dtype(np.int64), len(self.row_ids)), self._present_at(f"labels/{name}")

    def by_row(self, of_blocks: np.ndarray) -> np.ndarray:
        """What is known of each block, (blocks,), for each of its rows, (rows,)."""
        return np.repeat(of_blocks, np.diff(self.bounds))

    def span(self, column: Column, start: int, end: int) -> ColumnData:
        """A column of the rows from ``start`` to ``end``."""
        name = f"columns/{encoded(column.name)}/values"
        if not varied(column):
            return self.load(name, storage(column), len(self.row_ids), slice(start, end))
        offsets = self.offsets(column)
        values = self.load(name, storage(column), int(offsets[-1]), slice(int(offsets[start]), int(offsets[end])))
        bounds = (offsets[start : end + 1] - offsets[start]).tolist()
        if column.dtype == "str":
            data = values.tobytes()
            with reading(self.path):
                return [data[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
        return [values[a:b] for a, b in itertools.pairwise(bounds)]

    def offsets(self, column: Column) -> np.ndarray:
        """Where each row of a ragged or str column begins, in elements, int64 (rows + 1,)."""
        if column.name not in self._offsets:
            name = f"columns/{encoded(column.name)}/offsets"
            offsets = self.load(name, np.dtype(np.int64), len(self.row_ids) + 1)
            if offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise self._damaged(name)
            self._offsets[column.name] = offsets
        return self._offsets[column.name]

    @cached_property
    def order(self) -> np.ndarray:
        """Places by rising row id, int64 (rows,)."""
        return np.argsort(self.row_ids, kind="stable")

    @cached_property
    def block_bytes(self) -> np.ndarray:
        """Size of each block's values in all columns, int64 (blocks,)."""
        sizes = np.zeros(len(self.bounds) - 1, np.int64)
        for column in self.columns.values():
            starts = self.offsets(column)[self.bounds] if varied(column) else self.bounds
            sizes += np.diff(starts) * storage(column).itemsize
        return sizes

    def load(self, name: str, dtype: np.dtype, length: int | None = None, part: slice = slice(None)) -> np.ndarray:
        """A data set, or part of it, that must have this type and, unless it is None, this length."""
        with reading(self.path):
            data_set = self._group[name]
            if data_set.dtype != dtype or data_set.ndim != 1 or length not in (None, data_set.shape[0]):
                raise self._damaged(name)
            values: np.ndarray = data_set[part]
        return values

    def _present_at(self, at: str) -> np.ndarray:
        if at not in self._present:
            self._present[at] = self.load(f"{at}/present", np.dtype(bool), len(self.bounds) - 1)
        return self._present[at]

    def _damaged(self, name: str) -> SnapshotError:
        return SnapshotError(f"{self.path} is damaged: stream {self.name!r} has a data set {name} that does not fit the others")
