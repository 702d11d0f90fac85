"""Finds trajectories of a run, also while it goes on, and reads those that are asked for."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hpcrl.dataplane.labels import labels_of
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.rows import Rows, Table, open_rows
from hpcrl.dataplane.trajectories.layout import STREAM, files
from hpcrl.dataplane.trajectories.select import ROW, Wanted
from hpcrl.run.directory import RunDirectory

# Rows whose text is looked at at a time, and files that are held open.
_CHUNK, _OPEN = 256, 16


class Trajectories:
    """Those of a run as they are now. Close it, or use it in a ``with``.

    Args:
        tell: hears of each file that is skipped, and why.
    """

    def __init__(self, run: RunDirectory, tell: Callable[[str], None]) -> None:
        self._run, self._tell = run, tell
        self._files = files(run)
        self._open: OrderedDict[int, Rows] = OrderedDict()

    def __enter__(self) -> Trajectories:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        while self._open:
            self._open.popitem()[1].close()

    @property
    def paths(self) -> list[Path]:
        """Files, in the order of training."""
        return [path for path, _ in self._files]

    def find(self, wanted: Wanted) -> np.ndarray:
        """Rows that meet the conditions in the order of training, :data:`~hpcrl.dataplane.trajectories.select.ROW` (rows,)."""
        found = [np.zeros(0, ROW)]
        for number, (path, upto) in enumerate(self._files):
            try:
                table = self._table(number)
                rows = _rows(table, number)
                rows = rows[wanted.holds(rows) & (True if upto is None else rows["step"] <= upto)]
                if wanted.text:
                    rows = rows[_mentions(table, rows["place"], wanted.text.casefold())]
            except SnapshotError as error:
                self._tell(f"{path} is skipped: {error}")
                continue
            found.append(rows)
        return np.concatenate(found)

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Columns of rows, in their order.

        Raises:
            SnapshotError: a file is damaged.
        """
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            records: list[dict[str, Any]] = [{} for _ in part]
            for number in np.unique(part["file"]).tolist():
                mine = np.nonzero(part["file"] == number)[0]
                table = self._table(number)
                for name in columns:
                    values = table.read(name, part["place"][mine])
                    for at, value in zip(mine.tolist(), values, strict=True):
                        records[at][name] = value
            yield from records

    def blocks(self, rows: np.ndarray) -> Iterator[SavedBlock]:
        """Rows as they are written to a file, a block each; errors as :meth:`read`."""
        names = [column.name for column in STREAM.columns]
        for row, record in zip(rows, self.read(rows, names), strict=True):
            first = int(row["row"])
            columns: dict[str, Any] = {
                column.name: [record[column.name]]
                if column.ragged or column.dtype == "str"
                else np.array([record[column.name]], column.dtype)
                for column in STREAM.columns
            }
            ids = np.array([first], np.int64)
            packed = {column.name: pack(STREAM.name, column, ids, columns[column.name]) for column in STREAM.columns}
            yield SavedBlock(STREAM.name, first, 1, packed, labels_of(STREAM, columns))

    def _table(self, number: int) -> Table:
        rows = self._open.get(number)
        if rows is None:
            path = self._files[number][0]
            rows = open_rows(path)
            try:
                if (found := rows.about.get("run_id")) != self._run.run_id:
                    raise SnapshotError(f"it is of run {found!r}, not of {self._run.run_id!r}")
                if STREAM.name not in rows.tables:
                    raise SnapshotError(f"it has no stream {STREAM.name!r}")
            except SnapshotError:
                rows.close()
                raise
            self._open[number] = rows
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return rows.tables[STREAM.name]


def _rows(table: Table, number: int) -> np.ndarray:
    rows = np.zeros(len(table), ROW)
    every = slice(None)
    rows["row"], rows["file"], rows["place"] = table.row_ids, number, np.arange(len(table))
    scalars = {"step": "step", "prompt": "prompt_number", "sample": "sample_index", "advantage": "advantage"}
    for name, column in {**scalars, "reward": "reward", "outcome": "outcome"}.items():
        rows[name] = table.read(column, every)
    rows["length"], rows["prompt_length"] = table.lengths("response_ids"), table.lengths("prompt_ids")
    rows["first_version"], rows["last_version"] = table.label("first_versions")[0], table.label("last_versions")[0]
    return rows


def _mentions(table: Table, places: np.ndarray, text: str) -> np.ndarray:
    found: list[bool] = []
    for start in range(0, len(places), _CHUNK):
        part = places[start : start + _CHUNK]
        answers, items = table.read("response", part), table.read("item", part)
        found += [text in f"{answer}\n{_said(str(item))}".casefold() for answer, item in zip(answers, items, strict=True)]
    return np.array(found, bool)


def _said(item: str) -> str:
    """Question and reference answer of an item."""
    try:
        record = json.loads(item)
        return f"{record['question']}\n{record['answer']}"
    except (ValueError, KeyError, TypeError):
        return item
