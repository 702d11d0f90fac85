"""Reads a file of rows: one by one, by their labels, or block by block; payload only of the rows asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from hpcrl.dataplane.interface import ColumnData
from hpcrl.dataplane.packing import join
from hpcrl.dataplane.snapshot.blocks import read_blocks, read_infos
from hpcrl.dataplane.snapshot.datasets import DataSets, reading
from hpcrl.dataplane.snapshot.layout import KIND, LAYOUT, BlockInfo, SavedBlock, SnapshotError, encoded, storage, varied
from hpcrl.recipe import Column


class Rows:
    """An open file of rows; close it, or use it in a ``with``.

    Attributes:
        about: the file's attributes.
        tables: by name, its streams.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            # Parallel file systems are often mounted without locks; what is committed does not change.
            self._file = h5py.File(path, "r", locking=False)
        try:
            with reading(path):
                self.about: dict[str, Any] = {k: v.item() if hasattr(v, "item") else v for k, v in self._file.attrs.items()}
                self._check()
                tables = [Table(DataSets(path, group)) for group in self._file["streams"].values()]
                self.tables = {table.name: table for table in tables}
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self.about.get("kind") != KIND:
            raise SnapshotError(f"{self.path} holds no rows of hpcrl: its attribute 'kind' is not {KIND!r}")
        if (layout := self.about.get("layout")) != LAYOUT:
            raise SnapshotError(
                f"{self.path} has layout {layout}; this hpcrl reads {LAYOUT}: read it with the one that wrote it"
            )


def open_rows(path: Path) -> Rows:
    """Open a file that :func:`hpcrl.dataplane.snapshot.write.write_rows` wrote.

    Raises:
        SnapshotError: it cannot be read, is damaged, holds something else, or has a layout that is not known here.
    """
    return Rows(path)


class Table:
    """The rows of one stream in an open file. A row's **place** is its position in the file, from 0.

    Every method raises :class:`SnapshotError` when the file turns out to be damaged or has no column of that name.
    """

    def __init__(self, sets: DataSets) -> None:
        self._sets = sets

    def __len__(self) -> int:
        return len(self._sets.row_ids)

    @property
    def name(self) -> str:
        """The stream's."""
        return self._sets.name

    @property
    def columns(self) -> Mapping[str, Column]:
        """By name."""
        return self._sets.columns

    @property
    def row_ids(self) -> np.ndarray:
        """int64 (rows,), by place."""
        return self._sets.row_ids

    def place(self, row_id: int) -> int:
        """Where a row is.

        Raises:
            KeyError: it is not in the file.
        """
        order = self._sets.order
        at = int(np.searchsorted(self.row_ids, row_id, sorter=order))
        if at == len(order) or self.row_ids[order[at]] != row_id:
            raise KeyError(f"{self._sets.path}: stream {self.name!r} has no row {row_id}")
        return int(order[at])

    def label(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of a field of :class:`~hpcrl.dataplane.ledger.ops.Labels`, int64 (rows,), and who has one, bool (rows,)."""
        values, known = self._sets.label(name)
        return values, self._sets.by_row(known)

    def present(self, column: str) -> np.ndarray:
        """Whether the column of each row was filled, bool (rows,)."""
        return self._sets.by_row(self._sets.column_present(self._sets.column(column).name))

    def lengths(self, column: str) -> np.ndarray:
        """Elements of each row of a ragged column, bytes of each of a str one, int64 (rows,).

        Raises:
            SnapshotError: rows of the column do not differ in length.
        """
        declared = self._sets.column(column)
        if not varied(declared):
            raise SnapshotError(f"{self._sets.path}: column {column!r} of stream {self.name!r} has one value a row")
        return np.diff(self._sets.offsets(declared))

    def where(
        self,
        *,
        prompt: int | None = None,
        versions: tuple[int, int] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
    ) -> np.ndarray:
        """Places of the rows that meet every condition, int64, rising. Reads labels and scalar columns only.

        Args:
            prompt: of this prompt.
            versions: made by policy versions between these two only, both included.
            ranges: value of a scalar column between two bounds, both included.

        Raises:
            SnapshotError: a column of ``ranges`` is not one number a row.
        """
        chosen = np.ones(len(self), bool)
        conditions: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = []
        if prompt is not None:
            conditions.append(("prompts", lambda values: values == prompt))
        if versions is not None:
            oldest, newest = versions
            conditions.append(("first_versions", lambda values: values >= oldest))
            conditions.append(("last_versions", lambda values: values <= newest))
        for label, holds in conditions:
            values, known = self.label(label)
            chosen &= known & holds(values)
        for name, (low, high) in (ranges or {}).items():
            column = self._sets.column(name)
            if varied(column):
                raise SnapshotError(f"{self._sets.path}: column {name!r} of stream {self.name!r} is not one number a row")
            values = self._sets.load(f"columns/{encoded(name)}/values", storage(column), len(self))
            chosen &= self.present(name) & (values >= low) & (values <= high)
        return np.nonzero(chosen)[0]

    def read(self, column: str, places: slice | Sequence[int] | np.ndarray) -> ColumnData:
        """A column of some rows, in the order asked for; 0 or empty where it was not filled, see :meth:`present`.

        Raises:
            IndexError: there is no such place.
        """
        declared = self._sets.column(column)
        wanted = np.arange(len(self))[places if isinstance(places, slice) else np.asarray(places, np.int64)]
        # Rows that follow each other are read at once.
        runs = np.split(wanted, np.nonzero(np.diff(wanted) != 1)[0] + 1) if len(wanted) else []
        parts = [self._sets.span(declared, int(run[0]), int(run[-1]) + 1) for run in runs]
        return join(declared, parts) if parts else self._sets.span(declared, 0, 0)

    def row(self, place: int) -> dict[str, Any]:
        """The columns of one row that were filled: a number, a string or an array each."""
        return {name: self.read(name, [place])[0] for name in self.columns if self.present(name)[place]}

    def infos(self) -> list[BlockInfo]:
        """Every block without its payload, in the order of the file."""
        return read_infos(self._sets)

    def blocks(self, numbers: Sequence[int] | None = None) -> Iterator[SavedBlock]:
        """Blocks as they were saved, in the order asked for; some MiB are held at a time.

        Args:
            numbers: which, by their order in the file; None = all.
        """
        infos = self.infos()
        return read_blocks(self._sets, infos, range(len(infos)) if numbers is None else numbers)
