"""The data plane between threads of one process: the same rules, no servers and no polling."""

from __future__ import annotations

import copy
import json
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrl.dataplane.interface import (
    Batch,
    Block,
    ColumnData,
    DataPlane,
    DataPlaneError,
    EndOfStream,
    Feedback,
    StreamDepth,
)
from hpcrl.dataplane.member import Member, encode_value
from hpcrl.dataplane.packing import join
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag

_STOP_EVERY_S = 0.25


@dataclass(eq=False)
class _Held:
    row_ids: np.ndarray
    columns: dict[str, ColumnData]
    read_by: set[str] = field(default_factory=set)


class MemoryHub:
    """What all the planes of one process share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rows: dict[str, dict[int, _Held]] = defaultdict(dict)
        self.closed: dict[str, set[str]] = defaultdict(set)
        self.feedback: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)


class MemoryPlane(DataPlane):
    """One role's connection to a hub.

    Args:
        wait_s: the longest that a put waits for room in its stream [s].
        stop: ends a wait for room.
    """

    def __init__(self, member: Member, hub: MemoryHub, *, wait_s: float, stop: StopFlag | None = None) -> None:
        self._member, self._hub, self._wait_s, self._stop = member, hub, wait_s, stop or StopFlag()
        self._row_ids = member.row_ids()
        self._open = True

    def put(self, stream: str, columns: Mapping[str, ColumnData]) -> np.ndarray:
        """See :meth:`DataPlane.put`. Waits while this process's share of the stream's capacity is full."""
        declared = self._member.check_put(stream, columns)
        rows = len(columns[declared[0].name])
        with self._hub.changed:
            self._refuse_closed(stream)
            self._wait_for_room(stream, rows)
            row_ids = self._row_ids.take(rows)
            own = {column.name: copy.deepcopy(columns[column.name]) for column in declared}
            self._hub.rows[stream][int(row_ids[0])] = _Held(row_ids, own)
            self._hub.changed.notify_all()
        return row_ids.copy()

    def read(self, stream: str, columns: Sequence[str], *, max_rows: int, wait_s: float) -> Batch | None:
        """See :meth:`DataPlane.read`."""
        wanted = self._member.check_read(stream, columns, max_rows)
        names = [column.name for column in wanted]

        def ready() -> bool:
            return bool(self._take(stream, names, max_rows)) or self._ended(stream, names)

        with self._hub.changed:
            self._refuse_use()
            self._hub.changed.wait_for(ready, wait_s)
            taken = self._take(stream, names, max_rows)
            if not taken:
                if self._ended(stream, names):
                    raise EndOfStream(f"stream {stream!r}: group {self._member.group!r} has had every row")
                return None
            for held in taken:
                held.read_by.add(self._member.group)
            parts = [copy.deepcopy([held.columns[name] for name in names]) for held in taken]
        joined = {column.name: join(column, data) for column, data in zip(wanted, zip(*parts, strict=True), strict=True)}
        return Batch(stream, joined, tuple(Block(held.row_ids.copy(), held) for held in taken))

    def fill(self, batch: Batch, columns: Mapping[str, ColumnData]) -> None:
        """See :meth:`DataPlane.fill`."""
        declared = self._member.check_fill(batch.stream, columns, len(batch))
        with self._hub.changed:
            self._refuse_closed(batch.stream)
            start = 0
            for held in self._held(batch):
                end = start + len(held.row_ids)
                held.columns.update({c.name: copy.deepcopy(columns[c.name][start:end]) for c in declared})
                start = end
            self._hub.changed.notify_all()

    def clear(self, batch: Batch) -> None:
        """See :meth:`DataPlane.clear`."""
        self._member.check_clear(batch.stream)
        with self._hub.changed:
            for held in self._held(batch):
                del self._hub.rows[batch.stream][int(held.row_ids[0])]
            self._hub.changed.notify_all()

    def close_stream(self, stream: str) -> None:
        """See :meth:`DataPlane.close_stream`."""
        self._member.check_close(stream)
        with self._hub.changed:
            self._refuse_use()
            self._hub.closed[stream].add(self._member.name)
            self._hub.changed.notify_all()

    def announce(self, feedback: str, value: dict[str, Any]) -> None:
        """See :meth:`DataPlane.announce`."""
        self._member.check_feedback(feedback, announce=True)
        text = encode_value(feedback, value)
        with self._hub.changed:
            self._refuse_use()
            sequence, _ = self._hub.feedback[feedback].get(self._member.name, (0, ""))
            self._hub.feedback[feedback][self._member.name] = (sequence + 1, text)

    def newest(self, feedback: str) -> dict[str, Feedback]:
        """See :meth:`DataPlane.newest`."""
        self._member.check_feedback(feedback, announce=False)
        with self._hub.changed:
            self._refuse_use()
            held = dict(self._hub.feedback[feedback])
        return {writer: Feedback(writer, sequence, json.loads(text)) for writer, (sequence, text) in held.items()}

    def depth(self, stream: str) -> StreamDepth:
        """See :meth:`DataPlane.depth`."""
        columns = self._member.stream(stream).columns
        with self._hub.changed:
            self._refuse_use()
            held = [(len(block.row_ids), set(block.columns)) for block in self._hub.rows[stream].values()]
        return StreamDepth(
            rows=sum(rows for rows, _ in held),
            blocks=len(held),
            rows_with={column.name: sum(rows for rows, have in held if column.name in have) for column in columns},
        )

    def close(self) -> None:
        """See :meth:`DataPlane.close`."""
        self._open = False

    def _wait_for_room(self, stream: str, rows: int) -> None:
        allowed, left = self._member.live_rows_allowed(stream), self._wait_s

        def has_room() -> bool:
            live = sum(len(held.row_ids) for first, held in self._hub.rows[stream].items() if self._row_ids.mine(first))
            return live == 0 or live + rows <= allowed

        while not self._hub.changed.wait_for(has_room, min(left, _STOP_EVERY_S)):
            if self._stop.is_set():
                raise Stopped(f"{self._member.name} was asked to stop while it waited for room in stream {stream!r}")
            left -= _STOP_EVERY_S
            if left <= 0:
                raise self._member.full(stream, self._wait_s)

    def _take(self, stream: str, names: list[str], max_rows: int) -> list[_Held]:
        taken: list[_Held] = []
        for held in self._hub.rows[stream].values():
            if self._member.group not in held.read_by and all(name in held.columns for name in names):
                max_rows -= len(held.row_ids)
                if max_rows < 0:
                    break
                taken.append(held)
        return taken

    def _ended(self, stream: str, names: list[str]) -> bool:
        return self._member.closers(stream, names) <= self._hub.closed[stream]

    def _held(self, batch: Batch) -> list[_Held]:
        self._refuse_use()
        live = self._hub.rows[batch.stream]
        gone = [block for block in batch.blocks if live.get(int(block.row_ids[0])) is not block.handle]
        if gone:
            raise DataPlaneError(
                f"{self._member.name}: {len(gone)} of {len(batch.blocks)} blocks of a batch of stream {batch.stream!r} are no "
                f"longer there (first row id {int(gone[0].row_ids[0])}): the batch was cleared before"
            )
        return [block.handle for block in batch.blocks]

    def _refuse_closed(self, stream: str) -> None:
        self._refuse_use()
        if self._member.name in self._hub.closed[stream]:
            raise DataPlaneError(f"{self._member.name}: stream {stream!r} was closed by this process; it takes no more rows")

    def _refuse_use(self) -> None:
        if not self._open:
            raise DataPlaneError(f"{self._member.name}: the connection to the data plane is closed")
