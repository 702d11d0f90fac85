"""Checks of rows against the columns that a stream declares, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

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

    Float columns that say so hold no NaN and no infinity, aligned columns are equally long within each row (a row of no
    tokens at all is fine), and no row is over the stream's limit. Nothing is cast: a column of another dtype is refused.

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
    _check_aligned(stream, data)
    _check_size(stream, data, found)
    return found


def _check_aligned(stream: Stream, data: Mapping[str, ColumnData]) -> None:
    for group in stream.aligned:
        names = [name for name in group if name in data]
        for row, lengths in enumerate(zip(*([len(item) for item in data[name]] for name in names), strict=True)):
            if len(set(lengths)) > 1:
                raise SchemaError(
                    f"stream {stream.name!r}: expected columns {names} equally long in each row, got in row {row} lengths "
                    f"{dict(zip(names, lengths, strict=True))}"
                )


def _check_size(stream: Stream, data: Mapping[str, ColumnData], rows: int) -> None:
    sizes = np.zeros(rows, np.int64)
    for column in data.values():
        if isinstance(column, np.ndarray):
            sizes += column.itemsize
        else:
            sizes += [len(item) if isinstance(item, str) else item.nbytes for item in column]
    if (largest := int(sizes.max())) > stream.max_row_bytes:
        raise SchemaError(
            f"stream {stream.name!r}: row {int(sizes.argmax())} has {largest} bytes in columns {list(data)}, more than its "
            f"max_row_bytes={stream.max_row_bytes}"
        )


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
    if column.finite:
        vectors = [data] if isinstance(data, np.ndarray) else cast("list[np.ndarray]", data)
        for row, values in enumerate(vectors):
            finite = np.isfinite(values)
            if not finite.all():
                place = int(finite.argmin())
                at = f"row {row}, place {place}" if column.ragged else f"row {place}"
                raise SchemaError(f"{where}: expected finite numbers, got {values[place]} in {at}")
    return len(data)


def _is_vector(data: object, dtype: str) -> bool:
    return isinstance(data, np.ndarray) and data.ndim == 1 and data.dtype == np.dtype(dtype)


def _found(data: object) -> str:
    if isinstance(data, np.ndarray):
        return f"a {data.dtype} array of shape {data.shape}"
    return f"{type(data).__module__}.{type(data).__qualname__}"
