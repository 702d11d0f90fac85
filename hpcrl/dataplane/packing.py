"""A block's column as one flat byte array, and back, exactly.

Layout, little-endian, every part 8-byte aligned up to the payload::

    int64 tag            of stream, column and type: bytes of another column are never taken for this one
    int64 rows
    int64 row_ids[rows]
    int64 ends[rows]     ragged and str columns only: where each row ends, in elements (str: in bytes)
    payload

Strings are UTF-8; lone surrogates, which Python strings may hold, survive.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import cast

import numpy as np

from hpcrl.dataplane.interface import ColumnData, DataPlaneError
from hpcrl.recipe import Column


def pack(stream: str, column: Column, row_ids: np.ndarray, data: ColumnData) -> np.ndarray:
    """One column of a block, already checked against its schema, as uint8 (bytes,).

    Args:
        row_ids: int64 (rows,).
    """
    head = [np.array([_tag(stream, column), len(row_ids)], np.int64), row_ids]
    if column.dtype == "str":
        texts = [text.encode("utf-8", "surrogatepass") for text in cast("list[str]", data)]
        payload = np.frombuffer(b"".join(texts), np.uint8)
        head.append(_ends([len(text) for text in texts]))
    elif column.ragged:
        rows = cast("list[np.ndarray]", data)
        payload = np.concatenate(rows)
        head.append(_ends([len(row) for row in rows]))
    else:
        payload = cast("np.ndarray", data)
    return np.concatenate([part.view(np.uint8) for part in (*head, np.ascontiguousarray(payload))])


def unpack(stream: str, column: Column, packed: np.ndarray) -> tuple[np.ndarray, ColumnData]:
    """Row ids and data of a packed column; nothing aliases ``packed``.

    Raises:
        DataPlaneError: the bytes are not those of this column.
    """
    where = f"stream {stream!r}, column {column.name!r}"
    if packed.nbytes < 16:
        raise DataPlaneError(f"{where}: {packed.nbytes} bytes came back, too few for a block")
    owned = packed.copy()
    tag, rows = (int(number) for number in owned[:16].view(np.int64))
    if tag != _tag(stream, column):
        raise DataPlaneError(f"{where}: the bytes of another column or stream came back (tag {tag})")
    varied = column.ragged or column.dtype == "str"
    start = 16 + 8 * rows * (2 if varied else 1)
    itemsize = 1 if column.dtype == "str" else np.dtype(column.dtype).itemsize
    if rows < 1 or owned.nbytes < start:
        raise DataPlaneError(f"{where}: {owned.nbytes} bytes came back, expected at least {start} for {rows} rows")
    row_ids = owned[16 : 16 + 8 * rows].view(np.int64)
    ends = owned[16 + 8 * rows : start].view(np.int64)
    size = start + (int(ends[-1]) if varied else rows) * itemsize
    if owned.nbytes != size:
        raise DataPlaneError(f"{where}: {owned.nbytes} bytes came back, expected {size} for {rows} rows")
    if column.dtype == "str":
        text = owned[start:].tobytes()
        bounds = [0, *ends.tolist()]
        return row_ids, [text[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
    values = owned[start:].view(np.dtype(column.dtype))
    return row_ids, np.split(values, ends[:-1]) if varied else values


def join(column: Column, parts: Sequence[ColumnData]) -> ColumnData:
    """The data of several blocks, one after the other."""
    if column.ragged or column.dtype == "str":
        return [item for part in parts for item in part]  # type: ignore[return-value]
    return np.concatenate(cast("Sequence[np.ndarray]", parts))


def _tag(stream: str, column: Column) -> int:
    return zlib.crc32(f"{stream}\0{column.name}\0{column.dtype}\0{column.ragged}".encode())


def _ends(lengths: list[int]) -> np.ndarray:
    return np.cumsum(np.array(lengths, np.int64))
