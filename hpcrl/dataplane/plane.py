"""The data plane of one process, over any desk and any store: what a role asks for becomes operations and packed bytes."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from hpcrl.dataplane.interface import (
    Batch,
    Block,
    ColumnData,
    DataPlane,
    DataPlaneError,
    EndOfStream,
    Feedback,
    NotAnswered,
    SchemaError,
    StreamDepth,
    TurnOver,
)
from hpcrl.dataplane.labels import labels_of
from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.member import Member, encode_value
from hpcrl.dataplane.packing import Packing, empty, join, prepare, unpack
from hpcrl.dataplane.seat import Seat
from hpcrl.recipe import Column

MakeOp = Callable[[int, int], ops.AnyOp]
_ERRORS = {"schema": SchemaError, "stale": TurnOver}
# By column, where its bytes lie.
Refs = dict[str, ops.Ref]


class Desk(Protocol):
    """Carries operations to the ledger; :class:`hpcrl.dataplane.desk.client.DeskClient`, or a hub in this process."""

    def ask(self, make: MakeOp, *, what: str, wait_s: float = 0.0) -> ops.Answer:
        """The answer; see there."""

    def close(self) -> None:
        """Let go of it."""


class Store(Protocol):
    """Keeps the packed bytes of columns."""

    def write(self, stream: str, blocks: Sequence[tuple[int, Mapping[str, Packing]]]) -> list[Refs]:
        """Keep columns of blocks, by first row id; durable against the end of any process of the node.

        Raises:
            DataPlaneError: they cannot be kept; nothing of them is.
        """

    def read(self, refs: Sequence[ops.Ref]) -> list[np.ndarray]:
        """The bytes again, uint8, valid for as long as the array lives; read-only unless they are the caller's alone."""

    def discard(self, refs: Sequence[ops.Ref]) -> None:
        """Bytes that no operation will ever name."""

    def freed(self, segments: Mapping[str, int], values: Sequence[int]) -> None:
        """What the ledger says is not needed any more; see :class:`hpcrl.dataplane.ledger.ops.Granted`."""

    def close(self) -> None:
        """Let go of it."""


class LedgerPlane(DataPlane):
    """One process's data plane.

    Args:
        life: of this process; see :class:`hpcrl.dataplane.ledger.ops.Op`.
        wait_s: the longest that a put waits for room [s].
        lease_s: how long rows stay this process's without a word of it [s].
    """

    def __init__(
        self,
        member: Member,
        desk: Desk,
        store: Store,
        *,
        life: int,
        wait_s: float,
        lease_s: float,
    ) -> None:
        self._member, self._desk, self._store, self._life = member, desk, store, life
        self._wait_s, self._lease_s = wait_s, lease_s
        self._row_ids = member.row_ids()
        self._lock = threading.Lock()
        self._closed: set[str] = set()
        self._said_at = time.monotonic()
        self._do("begin", ops.Hello)
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, name=f"{member.name}-beats", daemon=True)
        self._beats.start()

    def put(self, stream: str, columns: Mapping[str, ColumnData]) -> np.ndarray:
        """See :meth:`DataPlane.put`. Waits while the stream is full."""
        declared = self._member.check_put(stream, columns)
        self._refuse_closed(stream)
        rows = len(columns[declared[0].name])
        row_ids = self._row_ids.take(rows)
        first = int(row_ids[0])
        packed = {column.name: prepare(stream, column, row_ids, columns[column.name]) for column in declared}
        (refs,) = self._store.write(stream, [(first, packed)])
        with self._discarding([refs]):
            answer = self._do(
                f"put {rows} rows into stream {stream!r}",
                ops.Put,
                wait_s=self._wait_s,
                stream=stream,
                first=first,
                rows=rows,
                refs=refs,
                bytes=sum(packing.size for packing in packed.values()),
                labels=labels_of(self._member.stream(stream), columns),
            )
            if isinstance(answer, ops.Wait):
                raise DataPlaneError(
                    f"{self._member.name}: stream {stream!r} had no room for {self._wait_s:g} s: {answer.reason}"
                )
        return row_ids

    def read(self, stream: str, columns: Sequence[str], *, max_rows: int, wait_s: float) -> Batch | None:
        """See :meth:`DataPlane.read`."""
        wanted = self._member.check_read(stream, columns, max_rows)
        answer = self._ask(
            f"read columns {list(columns)} of stream {stream!r}",
            ops.Lease,
            wait_s=wait_s,
            stream=stream,
            columns=list(columns),
            max_rows=max_rows,
            seconds=self._lease_s,
        )
        return self._batch(stream, wanted, answer)

    def draw(
        self,
        stream: str,
        columns: Sequence[str],
        *,
        draw: int,
        rows: int,
        share: int,
        shares: int,
        wait_s: float,
        max_tokens: int = 0,
        quadratic: float = 0.0,
    ) -> Batch | None:
        """See :meth:`DataPlane.draw`."""
        wanted = self._member.check_read(stream, columns, rows)
        answer = self._ask(
            f"draw set {draw} of stream {stream!r}",
            ops.Draw,
            wait_s=wait_s,
            stream=stream,
            columns=list(columns),
            draw=draw,
            rows=rows,
            share=share,
            shares=shares,
            seconds=self._lease_s,
            max_tokens=max_tokens,
            quadratic=quadratic,
        )
        return self._batch(stream, wanted, answer)

    def fill(self, batch: Batch, columns: Mapping[str, ColumnData]) -> None:
        """See :meth:`DataPlane.fill`."""
        stream = batch.stream
        declared = self._member.check_fill(stream, columns, len(batch))
        self._refuse_closed(stream)
        starts = np.cumsum([0, *(len(block.row_ids) for block in batch.blocks)]).tolist()
        packed = [
            (int(block.row_ids[0]), {c.name: prepare(stream, c, block.row_ids, columns[c.name][a:b]) for c in declared})
            for block, (a, b) in zip(batch.blocks, itertools.pairwise(starts), strict=True)
        ]
        written = self._store.write(stream, packed)
        refs = {first: of_block for (first, _), of_block in zip(packed, written, strict=True)}
        with self._discarding(written):
            self._do(f"fill columns {list(columns)} of stream {stream!r}", ops.Fill, stream=stream, blocks=refs)

    def trained(self, batch: Batch, version: int) -> None:
        """See :meth:`DataPlane.trained`."""
        self._member.check_clear(batch.stream)
        blocks = _firsts(batch)
        self._do(f"mark rows of stream {batch.stream!r}", ops.Trained, stream=batch.stream, blocks=blocks, version=version)

    def acknowledge(self, batch: Batch) -> None:
        """See :meth:`DataPlane.acknowledge`."""
        what = f"acknowledge rows of stream {batch.stream!r}"
        self._do(what, ops.Acknowledge, stream=batch.stream, blocks=_firsts(batch))

    def give_back(self, batch: Batch) -> None:
        """See :meth:`DataPlane.give_back`."""
        self._do(f"give back rows of stream {batch.stream!r}", ops.GiveBack, stream=batch.stream, blocks=_firsts(batch))

    def drop(self, batch: Batch, reason: str) -> None:
        """See :meth:`DataPlane.drop`."""
        self._member.check_clear(batch.stream)
        what = f"drop rows of stream {batch.stream!r}"
        self._do(what, ops.Drop, stream=batch.stream, blocks=_firsts(batch), reason=reason)

    def close_stream(self, stream: str) -> None:
        """See :meth:`DataPlane.close_stream`."""
        self._member.check_close(stream)
        with self._lock:
            self._closed.add(stream)
        self._do(f"close stream {stream!r}", ops.Close, stream=stream)

    def announce(self, feedback: str, value: dict[str, Any]) -> None:
        """See :meth:`DataPlane.announce`."""
        self._member.check_feedback(feedback, announce=True)
        text = encode_value(feedback, value)
        self._do(f"announce on feedback stream {feedback!r}", ops.Announce, feedback=feedback, value=text)

    def newest(self, feedback: str) -> dict[str, Feedback]:
        """See :meth:`DataPlane.newest`."""
        self._member.check_feedback(feedback, announce=False)
        answer = self._do(f"read feedback stream {feedback!r}", ops.AskNewest, feedback=feedback)
        assert isinstance(answer, ops.Newest)
        return {who: Feedback(who, number, json.loads(value)) for who, (number, value) in answer.values.items()}

    def seat(self, ring: str) -> Seat:
        """See :meth:`DataPlane.seat`."""
        self._member.check_ring(ring)
        return Seat(ring, self._ask, lease_s=self._lease_s)

    def held(self, stream: str) -> frozenset[int]:
        """See :meth:`DataPlane.held`."""
        self._member.stream(stream)
        answer = self._do(f"see what stream {stream!r} holds", ops.AskHeld, stream=stream)
        assert isinstance(answer, ops.Held)
        return frozenset(answer.prompts)

    def depth(self, stream: str) -> StreamDepth:
        """See :meth:`DataPlane.depth`."""
        self._member.stream(stream)
        figures = self.figures(stream)[stream]
        return StreamDepth(
            rows=figures["rows"],
            untrained=figures["untrained_rows"],
            blocks=figures["blocks"],
            rows_with=figures["rows_with"],
        )

    def figures(self, stream: str = "") -> dict[str, dict[str, Any]]:
        """See :meth:`DataPlane.figures`."""
        answer = self._do("look at the streams", ops.AskDepth, stream=stream)
        assert isinstance(answer, ops.Depths)
        return answer.streams

    def why(self, row_id: int) -> list[str]:
        """See :meth:`DataPlane.why`."""
        answer = self._do(f"ask why row {row_id} waits", ops.AskWhy, row=row_id)
        assert isinstance(answer, ops.Why)
        return answer.lines

    def close(self) -> None:
        """See :meth:`DataPlane.close`."""
        self._end.set()
        self._desk.close()
        self._beats.join(5.0)
        self._store.close()

    def _do(self, what: str, kind: type[ops.Op], *, wait_s: float = 0.0, **fields: Any) -> ops.Answer:
        answer = self._ask(what, kind, wait_s=wait_s, **fields)
        if isinstance(answer, ops.Granted) and (answer.freed or answer.values):
            self._store.freed(answer.freed, answer.values)
        return answer

    @contextmanager
    def _discarding(self, written: Sequence[Refs]) -> Iterator[None]:
        """Let go of what was written if the ledger certainly does not know of it."""
        try:
            yield
        except NotAnswered:
            raise
        except BaseException:
            self._store.discard([ref for refs in written for ref in refs.values()])
            raise

    def _ask(self, what: str, kind: type[ops.Op], *, wait_s: float = 0.0, **fields: Any) -> ops.Answer:
        who, life = self._member.name, self._life

        def make(seq: int, oldest: int) -> ops.AnyOp:
            return kind(who=who, life=life, seq=seq, oldest=oldest, **fields)  # type: ignore[return-value]

        answer = self._desk.ask(make, what=what, wait_s=wait_s)
        self._said_at = time.monotonic()
        if isinstance(answer, ops.Refused):
            raise _ERRORS.get(answer.kind, DataPlaneError)(f"{who}: cannot {what}: {answer.reason}")
        return answer

    def _batch(self, stream: str, wanted: Sequence[Column], answer: ops.Answer) -> Batch | None:
        assert isinstance(answer, ops.Leased)
        if not answer.blocks:
            if answer.ended:
                raise EndOfStream(f"stream {stream!r}: group {self._member.group!r} has had every row")
            return Batch(stream, {column.name: empty(column) for column in wanted}, ()) if answer.fixed else None
        try:
            return self._fetch(stream, wanted, answer.blocks)
        except BaseException:
            # This process goes on saying that it lives, so nobody else would ever get them.
            with suppress(DataPlaneError):
                self._do("give back what cannot be read", ops.GiveBack, stream=stream, blocks=[g.first for g in answer.blocks])
            raise

    def _fetch(self, stream: str, wanted: Sequence[Column], leased: Sequence[ops.Given]) -> Batch:
        packed = self._store.read([ref for given in leased for ref in given.refs])
        blocks, parts, start = [], [], 0
        for given in leased:
            expected = np.arange(given.first, given.first + given.rows, dtype=np.int64)
            data = []
            for column, array in zip(wanted, packed[start : start + len(wanted)], strict=True):
                # Views would keep segments from being used again for as long as a role holds a batch.
                row_ids, values = unpack(stream, column, array, copy=not array.flags.writeable)
                if not np.array_equal(row_ids, expected):
                    raise DataPlaneError(
                        f"{self._member.name}: column {column.name!r} of stream {stream!r} came back with rows {row_ids[:1]}…, "
                        f"asked for {given.first}…; a block was overwritten while it was still in use"
                    )
                data.append(values)
            blocks.append(Block(expected))
            parts.append(data)
            start += len(wanted)
        joined = {c.name: join(c, data) for c, data in zip(wanted, zip(*parts, strict=True), strict=True)}
        return Batch(stream, joined, tuple(blocks))

    def _refuse_closed(self, stream: str) -> None:
        with self._lock:
            if stream in self._closed:
                raise DataPlaneError(
                    f"{self._member.name}: stream {stream!r} was closed by this process; it takes no more rows"
                )

    def _beat(self) -> None:
        # A role that computes for long says nothing by itself, and its rows must not go to another meanwhile.
        while not self._end.wait(self._lease_s / 4):
            if time.monotonic() - self._said_at >= self._lease_s / 4:
                try:
                    self._ask("renew leases", ops.Beat)
                except DataPlaneError:
                    # Whatever the role asks next says it better.
                    continue


def _firsts(batch: Batch) -> list[int]:
    return [int(block.row_ids[0]) for block in batch.blocks]
