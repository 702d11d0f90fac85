"""Checks of rows against the columns that a stream declares, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcrl.dataplane.interface import ColumnData, SchemaError
from hpcrl.recipe import Column, Stream


def describe(column: Column) -> str:
    """What a column holds, as errors say it."""
    if column.dtype == "str":
        return "a list of str, one a row"
    if column.ragged:
        return f"a list of 1-D {column.dtype} arrays, one a row"
    return f"a 1-D {column.dtype} array, one value a row"


def check_rows(stream: Stream, expected: Sequence[Column], data: Mapping[str, ColumnData], *, rows: int | None = None) -> int:
    """Check that data holds exactly the expected columns, each of its declared type, all equally long.

    Nothing is cast: a column of another dtype is refused.

    Args:
        rows: how many rows there must be; None where any number from 1 to ``stream.block_rows`` will do.

    Returns:
        The number of rows.

    Raises:
        SchemaError: names stream, column, what was expected and what came.
    """
    names = [column.name for column in expected]
    unknown = sorted(set(data) - set(names))
    if unknown:
        raise SchemaError(f"stream {stream.name!r}: column {unknown[0]!r} is not one of the expected {names}; got {list(data)}")
    missing = [name for name in names if name not in data]
    if missing:
        raise SchemaError(f"stream {stream.name!r}: column {missing[0]!r} is missing; expected {names}, got {list(data)}")
    lengths = {column.name: _check_column(stream, column, data[column.name]) for column in expected}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"stream {stream.name!r}: expected columns of equal length, got {lengths}")
    found = next(iter(lengths.values()))
    if rows is not None and found != rows:
        raise SchemaError(f"stream {stream.name!r}: expected {rows} rows, those of the batch, got {found}")
    if found == 0:
        raise SchemaError(f"stream {stream.name!r}: expected at least one row, got none in column {names[0]!r}")
    if rows is None and found > stream.block_rows:
        raise SchemaError(f"stream {stream.name!r}: expected at most block_rows={stream.block_rows} rows, got {found}")
    return found


def _check_column(stream: Stream, column: Column, data: ColumnData) -> int:
    where, want = f"stream {stream.name!r}, column {column.name!r}", describe(column)
    if column.ragged or column.dtype == "str":
        if not isinstance(data, list):
            raise SchemaError(f"{where}: expected {want}, got {_found(data)}")
        for row, item in enumerate(data):
            fits = isinstance(item, str) if column.dtype == "str" else _is_vector(item, column.dtype)
            if not fits:
                raise SchemaError(f"{where}: expected {want}, got in row {row} {_found(item)}")
    elif not _is_vector(data, column.dtype):
        raise SchemaError(f"{where}: expected {want}, got {_found(data)}")
    return len(data)


def _is_vector(data: object, dtype: str) -> bool:
    return isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype == np.dtype(dtype)


def _found(data: object) -> str:
    if isinstance(data, np.ndarray):
        return f"a {data.dtype} array of shape {data.shape}"
    return f"{type(data).__module__}.{type(data).__qualname__}"
