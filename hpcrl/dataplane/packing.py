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
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import cast

import numpy as np

from hpcrl.dataplane.interface import ColumnData, DataPlaneError
from hpcrl.recipe import Column


@dataclass(frozen=True)
class Packing:
    """One column of a block, about to be packed: its size is known and nothing is copied yet.

    Attributes:
        head: int64, all before the payload.
        payload: arrays of one type that follow each other.
        size: of the whole [bytes].
    """

    head: np.ndarray
    payload: Sequence[np.ndarray]
    size: int

    def packed(self) -> np.ndarray:
        """All of it, uint8 (size,)."""
        out = np.empty(self.size, np.uint8)
        self.into(out)
        return out

    def into(self, out: np.ndarray) -> None:
        """Write it to uint8 (size,), which may lie in shared memory; the data must not have changed in the meantime."""
        out[: self.head.nbytes].view(np.int64)[:] = self.head
        np.concatenate(self.payload, out=out[self.head.nbytes :].view(self.payload[0].dtype), casting="no")


def prepare(stream: str, column: Column, row_ids: np.ndarray, data: ColumnData) -> Packing:
    """How one column of a block, already checked against its schema, will be packed.

    Args:
        row_ids: int64 (rows,).
    """
    head = [np.array([_tag(stream, column), len(row_ids)], np.int64), row_ids]
    payload: Sequence[np.ndarray]
    if column.dtype == "str":
        texts = [text.encode("utf-8", "surrogatepass") for text in cast("list[str]", data)]
        payload = [np.frombuffer(b"".join(texts), np.uint8)]
        head.append(_ends(texts))
    elif column.ragged:
        payload = cast("list[np.ndarray]", data)
        head.append(_ends(payload))
    else:
        payload = [cast("np.ndarray", data)]
    joined = np.concatenate(head)
    return Packing(joined, payload, joined.nbytes + sum(part.nbytes for part in payload))


def pack(stream: str, column: Column, row_ids: np.ndarray, data: ColumnData) -> np.ndarray:
    """One column of a block, already checked against its schema, as uint8 (bytes,); arguments as :func:`prepare`."""
    return prepare(stream, column, row_ids, data).packed()


def unpack(stream: str, column: Column, packed: np.ndarray, *, copy: bool = True) -> tuple[np.ndarray, ColumnData]:
    """Row ids and data of a packed column.

    Args:
        packed: uint8 (bytes,).
        copy: whether the arrays are to be the caller's own and writable. Otherwise they lie in ``packed`` itself, and can be
            written only if it can; strings, and all of what is not 8-byte aligned, are copied nevertheless.

    Raises:
        DataPlaneError: the bytes are not those of this column.
    """
    where = f"stream {stream!r}, column {column.name!r}"
    if packed.nbytes < 16:
        raise DataPlaneError(f"{where}: {packed.nbytes} bytes came back, too few for a block")
    if copy or packed.ctypes.data % 8:
        packed = packed.copy()
    tag, rows = packed[:16].view(np.int64).tolist()
    if tag != _tag(stream, column):
        raise DataPlaneError(f"{where}: the bytes of another column or stream came back (tag {tag})")
    varied = column.ragged or column.dtype == "str"
    start = 16 + 8 * rows * (2 if varied else 1)
    itemsize = 1 if column.dtype == "str" else np.dtype(column.dtype).itemsize
    if rows < 1 or packed.nbytes < start:
        raise DataPlaneError(f"{where}: {packed.nbytes} bytes came back, expected at least {start} for {rows} rows")
    row_ids = packed[16 : 16 + 8 * rows].view(np.int64)
    bounds = [0, *packed[16 + 8 * rows : start].view(np.int64).tolist()]
    size = start + (bounds[-1] if varied else rows) * itemsize
    if packed.nbytes != size:
        raise DataPlaneError(f"{where}: {packed.nbytes} bytes came back, expected {size} for {rows} rows")
    if any(a > b for a, b in itertools.pairwise(bounds)):
        raise DataPlaneError(f"{where}: the {size} bytes that came back are damaged: a row ends before it begins")
    if column.dtype == "str":
        text = packed[start:].tobytes()
        return row_ids, [text[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
    values = packed[start:].view(np.dtype(column.dtype))
    return row_ids, [values[a:b] for a, b in itertools.pairwise(bounds)] if varied else values


def empty(column: Column) -> ColumnData:
    """The data of no rows."""
    return [] if column.ragged or column.dtype == "str" else np.empty(0, np.dtype(column.dtype))


def join(column: Column, parts: Sequence[ColumnData]) -> ColumnData:
    """The data of several blocks, one after the other."""
    if column.ragged or column.dtype == "str":
        return [item for part in parts for item in part]  # type: ignore[return-value]
    return np.concatenate(cast("Sequence[np.ndarray]", parts))


def _tag(stream: str, column: Column) -> int:
    return zlib.crc32(f"{stream}\0{column.name}\0{column.dtype}\0{column.ragged}".encode())


def _ends(rows: Sequence[Sized]) -> np.ndarray:
    return np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
