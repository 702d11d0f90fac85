"""One process's rights and duties at the data plane, worked out from the recipe. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hpcrl.dataplane.interface import ColumnData, DataPlaneError, SchemaError
from hpcrl.dataplane.rowids import RowIds
from hpcrl.dataplane.schema import check_rows
from hpcrl.recipe import Column, Reads, Recipe, Stream, Writes

Claim = TypeVar("Claim", Reads, Writes)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of a group, and what its role's contract lets it do.

    Attributes:
        rank: number of the process within its group.
        processes: processes of every group of the recipe.
        attempt: number of the attempt, from 1.
        incarnation: how often this process was restarted within the attempt.
    """

    recipe: Recipe
    group: str
    rank: int
    processes: Mapping[str, int]
    attempt: int = 1
    incarnation: int = 0

    def __post_init__(self) -> None:
        if missing := sorted(set(self.recipe.groups) - set(self.processes)):
            raise ValueError(f"processes names no number for groups {missing}; got {dict(self.processes)}")
        if self.group not in self.recipe.groups or not 0 <= self.rank < self.processes[self.group]:
            raise ValueError(f"{self.name} is no process of the recipe; its groups have {dict(self.processes)}")

    @property
    def name(self) -> str:
        """``group.rank``."""
        return f"{self.group}.{self.rank}"

    def row_ids(self) -> RowIds:
        """A fresh source of this process's row ids; a process makes one."""
        groups = list(self.recipe.groups)
        before = sum(self.processes[group] for group in groups[: groups.index(self.group)])
        return RowIds(attempt=self.attempt, incarnation=self.incarnation, writer=before + self.rank)

    def stream(self, name: str) -> Stream:
        """A row stream of the recipe.

        Raises:
            SchemaError: there is none of that name.
        """
        for stream in self.recipe.streams:
            if stream.name == name:
                return stream
        raise SchemaError(_unknown("stream", name, [s.name for s in self.recipe.streams]))

    def check_put(self, stream: str, data: Mapping[str, ColumnData]) -> tuple[Column, ...]:
        """The columns of new rows.

        Raises:
            SchemaError: as :meth:`DataPlane.put`.
        """
        declared = self.stream(stream)
        entries = [entry for entry in self._writes(stream) if entry.creates]
        if not entries:
            raise SchemaError(f"stream {stream!r}: group {self.group!r} may not put rows; its role does not create them")
        columns = _columns(declared, (name for entry in entries for name in entry.columns))
        check_rows(declared, columns, data)
        return columns

    def check_fill(self, stream: str, data: Mapping[str, ColumnData], rows: int) -> tuple[Column, ...]:
        """The columns added to ``rows`` rows: all those of one ``Writes`` of the role.

        Raises:
            SchemaError: as :meth:`DataPlane.fill`.
        """
        declared = self.stream(stream)
        entries = [entry for entry in self._writes(stream) if not entry.creates]
        if not entries:
            raise SchemaError(f"stream {stream!r}: group {self.group!r} may not fill columns; its role promises none")
        nearest = max(entries, key=lambda entry: (set(entry.columns) == set(data), len(set(entry.columns) & set(data))))
        columns = _columns(declared, nearest.columns)
        check_rows(declared, columns, data, rows=rows)
        return columns

    def check_read(self, stream: str, columns: Sequence[str], max_rows: int) -> tuple[Column, ...]:
        """The columns asked for.

        Raises:
            SchemaError: as :meth:`DataPlane.read`, or the role's contract does not read these columns.
        """
        declared = self.stream(stream)
        known = [column.name for column in declared.columns]
        claimed = {name for entry in self._reads(stream) for name in entry.columns}
        for name in columns:
            if name not in known:
                raise SchemaError(f"stream {stream!r}: {_unknown('column', name, known)}")
            if name not in claimed:
                raise SchemaError(f"stream {stream!r}, column {name!r}: the role of group {self.group!r} does not read it")
        if not columns:
            raise SchemaError(f"stream {stream!r}: expected at least one column to read, got none")
        if max_rows < declared.block_rows:
            raise SchemaError(f"stream {stream!r}: max_rows={max_rows} is below the stream's block_rows={declared.block_rows}")
        return _columns(declared, columns)

    def is_final(self, stream: str) -> bool:
        """Whether this group is the stream's final reader."""
        return any(entry.final for entry in self._reads(stream))

    def check_clear(self, stream: str) -> None:
        """Raise :class:`DataPlaneError` unless this group is the stream's final reader."""
        self.stream(stream)
        if not self.is_final(stream):
            raise DataPlaneError(f"stream {stream!r}: group {self.group!r} may not clear rows; it is not the final reader")

    def check_close(self, stream: str) -> None:
        """Raise :class:`SchemaError` unless this group writes the stream."""
        self.stream(stream)
        if not self._writes(stream):
            raise SchemaError(f"stream {stream!r}: group {self.group!r} may not close it; its role does not write it")

    def check_feedback(self, feedback: str, *, announce: bool) -> None:
        """Raise :class:`SchemaError` for an unknown feedback stream or, to announce, one the role does not promise."""
        known = [stream.name for stream in self.recipe.feedback]
        if feedback not in known:
            raise SchemaError(_unknown("feedback stream", feedback, known))
        if announce and feedback not in self.recipe.groups[self.group].role.announces():
            raise SchemaError(f"feedback stream {feedback!r}: the role of group {self.group!r} does not announce on it")

    def check_ring(self, name: str) -> None:
        """Raise :class:`SchemaError` unless there is such a ring, it has a token, and this group is a member of it."""
        known = [ring.name for ring in self.recipe.rings if ring.fallback and self.group in ring.members]
        if name not in known:
            raise SchemaError(f"group {self.group!r} takes no turns in a ring {name!r}, only in {known}")

    def _writes(self, stream: str) -> list[Writes]:
        return _of(self.recipe.groups[self.group].role.writes(), stream)

    def _reads(self, stream: str) -> list[Reads]:
        return _of(self.recipe.groups[self.group].role.reads(), stream)


def encode_value(feedback: str, value: dict[str, Any]) -> str:
    """A feedback value as JSON.

    Raises:
        SchemaError: the value is no JSON object.
    """
    if not isinstance(value, dict):
        raise SchemaError(f"feedback stream {feedback!r}: expected a dict of JSON-like values, got {type(value).__qualname__}")
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"feedback stream {feedback!r}: expected JSON-like values, got {error}") from error


def _of(entries: Iterable[Claim], stream: str) -> list[Claim]:
    return [entry for entry in entries if entry.stream == stream]


def _columns(stream: Stream, names: Iterable[str]) -> tuple[Column, ...]:
    return tuple(stream.column(name) for name in dict.fromkeys(names))


def _unknown(kind: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{kind} {name!r} is unknown; there are {known}" + (f", did you mean {near[0]!r}?" if near else "")
