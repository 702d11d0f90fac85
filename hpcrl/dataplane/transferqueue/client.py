"""The data plane over TransferQueue: :class:`TransferQueuePlane`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from hpcrl.dataplane.packing import join, pack, unpack
from hpcrl.dataplane.transferqueue.link import Fetched, Link
from hpcrl.dataplane.transferqueue.room import Room
from hpcrl.dataplane.transferqueue.sampler import block_key, parse_key
from hpcrl.dataplane.transferqueue.tickets import Tickets
from hpcrl.recipe import Column
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.stop import StopFlag, back_off, wait_for

_FLAGS_EVERY_S = 0.1


class TransferQueuePlane(DataPlane):
    """One role process's connection to the queue.

    Args:
        member: this process and its rights.
        endpoints: ``{"controller": endpoint, "storage": [endpoint, …]}`` as the servers published them.
        key: the run's secret.
        call_s: deadline of each call [s].
        wait_s: the longest that a put waits for room in its stream [s].
        stop: ends a wait for room.

    Raises:
        DataPlaneError: a server of the queue does not answer.
    """

    def __init__(
        self,
        member: Member,
        endpoints: Mapping[str, Any],
        *,
        key: str,
        call_s: float,
        wait_s: float,
        stop: StopFlag | None = None,
    ) -> None:
        self._member, self._call_s, self._wait_s, self._stop = member, call_s, wait_s, stop
        self._row_ids = member.row_ids()
        self._lock = threading.Lock()
        self._rooms: dict[str, Room] = {}
        self._tickets: dict[str, Tickets] = defaultdict(Tickets)
        self._closed: set[str] = set()
        self._ended: set[tuple[str, frozenset[str]]] = set()
        self._flags_seen: dict[str, float] = {}
        self._sequences: dict[str, int] = {}
        self._announcing = threading.Lock()
        self._link = Link(member.name, endpoints, key=key, call_s=call_s)

    def put(self, stream: str, columns: Mapping[str, ColumnData]) -> np.ndarray:
        """See :meth:`DataPlane.put`. Waits while this process's share of the stream's capacity is full."""
        declared = self._member.check_put(stream, columns)
        self._refuse_closed(stream)
        rows = len(columns[declared[0].name])
        with self._lock:
            room = self._rooms.setdefault(stream, Room(self._member.live_rows_allowed(stream)))
        try:
            wait_for(
                f"room for {rows} rows in stream {stream!r}",
                lambda: room.take(rows, lambda: self._own_live_rows(stream)),
                seconds=self._wait_s,
                stop=self._stop,
            )
        except DeadlineExceeded as error:
            raise self._member.full(stream, self._wait_s) from error
        try:
            row_ids = self._row_ids.take(rows)
            packed = {column.name: [pack(stream, column, row_ids, columns[column.name])] for column in declared}
            key = block_key(int(row_ids[0]), rows)
            self._link.call(f"put rows into stream {stream!r}", lambda: self._write(stream, [key], packed, create=True))
        finally:
            room.settle(rows)
        return row_ids

    def read(self, stream: str, columns: Sequence[str], *, max_rows: int, wait_s: float) -> Batch | None:
        """See :meth:`DataPlane.read`. An answer that was lost on the way is given again by the next read."""
        wanted = self._member.check_read(stream, columns, max_rows)
        deadline = time.monotonic() + wait_s
        pauses = back_off(0.004, 0.1, 1.7)
        # Only the very same question may have the blocks that an answer lost.
        question = f"{self._member.name} {stream} {','.join(columns)} {max_rows}"
        with self._lock:
            tickets = self._tickets[question]
        with tickets.use() as ticket:
            config = {"reader": question, "max_rows": max_rows, "ticket": ticket.number, "oldest": ticket.oldest}
            while True:
                batch = self._fetch(stream, wanted, config)
                # Whoever closed had filled its rows before, so the flags must be looked at before the last fetch.
                if batch is None and self._all_closed(stream, wanted):
                    batch = self._fetch(stream, wanted, config)
                    if batch is None:
                        raise EndOfStream(f"stream {stream!r}: group {self._member.group!r} has had every row")
                if batch is not None:
                    ticket.settle()
                    return batch
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(next(pauses), left))

    def fill(self, batch: Batch, columns: Mapping[str, ColumnData]) -> None:
        """See :meth:`DataPlane.fill`."""
        declared = self._member.check_fill(batch.stream, columns, len(batch))
        self._refuse_closed(batch.stream)
        packed: dict[str, list[np.ndarray]] = {}
        for column in declared:
            starts = np.cumsum([0, *(len(block.row_ids) for block in batch.blocks)])
            packed[column.name] = [
                pack(batch.stream, column, block.row_ids, columns[column.name][start : start + len(block.row_ids)])
                for block, start in zip(batch.blocks, starts.tolist(), strict=False)
            ]
        keys = [block.handle for block in batch.blocks]
        self._link.call(f"fill rows of stream {batch.stream!r}", lambda: self._write(batch.stream, keys, packed))

    def clear(self, batch: Batch) -> None:
        """See :meth:`DataPlane.clear`."""
        self._member.check_clear(batch.stream)

        async def clear() -> None:
            await self._link.clear(await self._blocks(batch.stream, [block.handle for block in batch.blocks]))

        self._link.call(f"clear rows of stream {batch.stream!r}", clear)

    def close_stream(self, stream: str) -> None:
        """See :meth:`DataPlane.close_stream`."""
        self._member.check_close(stream)
        with self._lock:
            self._closed.add(stream)
        self._link.call(
            f"close stream {stream!r}", lambda: self._link.tag(f"closed/{stream}", self._member.name, {"closed": True})
        )

    def announce(self, feedback: str, value: dict[str, Any]) -> None:
        """See :meth:`DataPlane.announce`."""
        self._member.check_feedback(feedback, announce=True)
        text, name, partition = encode_value(feedback, value), self._member.name, f"feedback/{feedback}"
        with self._announcing:
            if feedback not in self._sequences:
                # A process that was restarted goes on where its predecessor ended.
                tags = self._link.call(f"read feedback stream {feedback!r}", lambda: self._link.keys(partition))
                self._sequences[feedback] = int(tags.get(name, {}).get("sequence", 0))
            sequence = self._sequences[feedback] + 1
            tag = {"sequence": sequence, "value": text}
            self._link.call(f"announce on feedback stream {feedback!r}", lambda: self._link.tag(partition, name, tag))
            self._sequences[feedback] = sequence

    def newest(self, feedback: str) -> dict[str, Feedback]:
        """See :meth:`DataPlane.newest`. One small request, in which the controller reads all writers at once."""
        self._member.check_feedback(feedback, announce=False)
        tags = self._link.call(f"read feedback stream {feedback!r}", lambda: self._link.keys(f"feedback/{feedback}"))
        return {
            writer: Feedback(writer, int(tag["sequence"]), json.loads(tag["value"]))
            for writer, tag in tags.items()
            if "sequence" in tag
        }

    def depth(self, stream: str) -> StreamDepth:
        """See :meth:`DataPlane.depth`. Columns are looked at one after the other, so figures may be a moment apart."""
        columns, partition = self._member.stream(stream).columns, f"rows/{stream}"

        async def look() -> tuple[list[str], list[list[str]]]:
            keys, *have = await asyncio.gather(
                self._link.keys(partition), *(self._link.produced(partition, column.name) for column in columns)
            )
            return list(keys), have

        keys, have = self._link.call(f"look at the depth of stream {stream!r}", look)
        return StreamDepth(
            rows=sum(parse_key(key)[1] for key in keys),
            blocks=len(keys),
            rows_with={c.name: sum(parse_key(key)[1] for key in some) for c, some in zip(columns, have, strict=True)},
        )

    def close(self) -> None:
        """See :meth:`DataPlane.close`."""
        self._link.close()

    async def _blocks(self, stream: str, keys: Sequence[str], *, create: bool = False) -> Any:
        meta = await self._link.blocks(f"rows/{stream}", keys, create=create)
        if meta.size < len(keys):
            raise DataPlaneError(
                f"{self._member.name}: {len(keys) - meta.size} of {len(keys)} blocks of a batch of stream {stream!r} are no "
                f"longer there (first row id {keys[0].split(':')[0]}): the batch was cleared before"
            )
        return meta

    async def _write(
        self, stream: str, keys: Sequence[str], packed: Mapping[str, Sequence[np.ndarray]], *, create: bool = False
    ) -> None:
        meta = await self._blocks(stream, keys, create=create)
        # TransferQueue says nothing when its controller did not take note of a write: look, and write once more.
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._link.write(meta, packed), self._call_s / 4)
            if await self._noted(stream, keys, set(packed), since=set(meta.field_names)):
                return
        raise DataPlaneError(
            f"{self._member.name}: columns {list(packed)} of stream {stream!r} were written twice and are not visible; a "
            f"storage unit or the controller did not take them: read the logs of the queue's processes"
        )

    async def _noted(self, stream: str, keys: Sequence[str], columns: set[str], *, since: set[str]) -> bool:
        """Whether the controller has noted columns of the blocks, or the blocks were visible and are cleared by now.

        A block is cleared in steps: its columns vanish first and its key last, then its place is used again. A second write
        in between would land in the next block at that place, so columns that are not there are waited for: they appear, or
        the key goes.

        Args:
            since: columns that the blocks had before; once one of these is missing, a block is being cleared.
        """
        pauses, deadline = back_off(0.005, 0.25), time.monotonic() + self._call_s / 5
        while True:
            seen = await self._link.blocks(f"rows/{stream}", keys)
            have = set(seen.field_names)
            if seen.size < len(keys) or columns <= have or not since <= have:
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(next(pauses))

    def _fetch(self, stream: str, wanted: Sequence[Column], config: dict[str, Any]) -> Batch | None:
        names = [column.name for column in wanted]
        found = self._link.call(
            f"read columns {names} of stream {stream!r}",
            lambda: self._link.fetch(f"rows/{stream}", names, self._member.group, config),
        )
        return None if found is None else self._unpack(stream, wanted, found)

    def _unpack(self, stream: str, wanted: Sequence[Column], found: Fetched) -> Batch:
        blocks, parts = [], []
        for key, packed in found:
            first, rows = parse_key(key)
            expected = np.arange(first, first + rows, dtype=np.int64)
            columns = [unpack(stream, column, array) for column, array in zip(wanted, packed, strict=True)]
            for column, (row_ids, _) in zip(wanted, columns, strict=True):
                if not np.array_equal(row_ids, expected):
                    raise DataPlaneError(
                        f"{self._member.name}: column {column.name!r} of stream {stream!r} came back with rows {row_ids[:1]}…, "
                        f"asked for {first}…; a block was cleared or overwritten while it was still in use"
                    )
            blocks.append(Block(expected, key))
            parts.append([data for _, data in columns])
        joined = {c.name: join(c, data) for c, data in zip(wanted, zip(*parts, strict=True), strict=True)}
        return Batch(stream, joined, tuple(blocks))

    def _all_closed(self, stream: str, wanted: Sequence[Column]) -> bool:
        question = (stream, frozenset(column.name for column in wanted))
        if question in self._ended:
            return True
        now = time.monotonic()
        if now < self._flags_seen.get(stream, 0.0) + _FLAGS_EVERY_S:
            return False
        self._flags_seen[stream] = now
        tags = self._link.call(f"see who closed stream {stream!r}", lambda: self._link.keys(f"closed/{stream}"))
        closed = {name for name, tag in tags.items() if tag.get("closed")}
        if not self._member.closers(stream, [column.name for column in wanted]) <= closed:
            return False
        self._ended.add(question)
        return True

    def _own_live_rows(self, stream: str) -> int:
        keys = self._link.call(f"look for room in stream {stream!r}", lambda: self._link.keys(f"rows/{stream}"))
        return sum(rows for first, rows in map(parse_key, keys) if self._row_ids.mine(first))

    def _refuse_closed(self, stream: str) -> None:
        with self._lock:
            if stream in self._closed:
                raise DataPlaneError(
                    f"{self._member.name}: stream {stream!r} was closed by this process; it takes no more rows"
                )
