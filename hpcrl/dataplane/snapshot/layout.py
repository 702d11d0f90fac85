"""How rows lie in an HDF5 file; ``docs/formats.md`` shows how to read one with plain h5py.

::

    /                            kind = "hpcrl.rows", layout = 1, and what the writer says of itself: run_id, attempt,
                                 number, node, t (Unix time [s]), policy_version
    /streams/STREAM              name, schema (JSON: name, dtype and ragged of each column)
      row_ids                    int64 (rows,)
      block_ends                 int64 (blocks,): block b has the rows from block_ends[b-1] (0 of the first) to block_ends[b]
      columns/COLUMN/values      one value a row; of a ragged column all rows' elements, of a str column all rows' UTF-8
                                 bytes, one after the other
      columns/COLUMN/offsets     int64 (rows + 1,), of ragged and str columns only: row r has values[offsets[r]:offsets[r + 1]]
      columns/COLUMN/present     bool (blocks,): whether the column of a block was filled; if not, its rows are 0 or empty
      labels/LABEL/values        int64 (rows,)
      labels/LABEL/present       bool (blocks,)

``STREAM`` and ``COLUMN`` are the names percent-encoded where HDF5 or a path would take them otherwise. Lone surrogates in
strings are kept as Python's ``surrogatepass`` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import quote

import msgspec
import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.recipe import Column, DType

KIND, LAYOUT = "hpcrl.rows", 1
LABELS = ("prompts", "first_versions", "last_versions", "tokens")


class SnapshotError(DataPlaneError):
    """A file of rows cannot be written, read or used; names it."""


@dataclass(frozen=True)
class SavedBlock:
    """A block as it is saved and as it comes back.

    Attributes:
        first: its rows are ``first`` to ``first + rows - 1``.
        columns: of each column that was filled, its packed bytes, uint8 (bytes,): see :mod:`hpcrl.dataplane.packing`.
    """

    stream: str
    first: int
    rows: int
    columns: Mapping[str, np.ndarray]
    labels: Labels = field(default_factory=Labels)


@dataclass(frozen=True)
class BlockInfo:
    """A saved block without its payload.

    Attributes:
        columns: those that were filled.
    """

    stream: str
    first: int
    rows: int
    columns: frozenset[str]
    labels: Labels = field(default_factory=Labels)


class _ColumnRecord(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    ragged: bool


def encoded(name: str) -> str:
    """A stream's, column's or node's name as one part of a path."""
    part = quote(name, safe=" ,:+=@()[]", errors="surrogatepass")
    return part.replace(".", "%2E") if part.startswith(".") else part


def varied(column: Column) -> bool:
    """Whether rows of a column differ in length, so that it has offsets."""
    return column.ragged or column.dtype == "str"


def storage(column: Column) -> np.dtype:
    """The type of a column's ``values``."""
    return np.dtype(np.uint8 if column.dtype == "str" else column.dtype)


def schema_to_json(columns: tuple[Column, ...]) -> str:
    """The columns as the attribute ``schema`` has them."""
    return msgspec.json.encode([_ColumnRecord(c.name, c.dtype, c.ragged) for c in columns]).decode()


def schema_from_json(text: str) -> tuple[Column, ...]:
    """Back from :func:`schema_to_json`.

    Raises:
        ValueError: it is no schema, or has a type that is not known here.
    """
    records = msgspec.json.decode(text, type=list[_ColumnRecord])
    types: dict[str, DType] = {dtype: dtype for dtype in get_args(DType)}
    if unknown := [record.dtype for record in records if record.dtype not in types]:
        raise ValueError(f"column type {unknown[0]!r} is not known")
    return tuple(Column(name=record.name, dtype=types[record.dtype], ragged=record.ragged) for record in records)
