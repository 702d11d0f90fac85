"""The data plane between threads of one process: the same ledger, asked directly, and rows in this process's memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcrl.dataplane.desk.wire import gives_nothing
from hpcrl.dataplane.history.writer import HistoryWriter
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.rules import Rules, rules_of
from hpcrl.dataplane.member import Member
from hpcrl.dataplane.packing import Packing
from hpcrl.dataplane.plane import LedgerPlane, MakeOp, Refs
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag

# Waits are cut short so that a stop, and the end of somebody's lease, is seen.
_LOOK_S = 0.25


class MemoryHub:
    """What all the planes of one process share: the ledger of the run, and the bytes.

    Args:
        history: ``RUN/attempt_N/history``; None = nobody is to prove anything of this run.
    """

    def __init__(self, history: Path | None = None) -> None:
        self._changed = threading.Condition()
        self._history = None if history is None else HistoryWriter(history)
        self._ledger: Ledger | None = None
        self._rules: Rules | None = None
        self._seqs: dict[tuple[str, int], itertools.count[int]] = defaultdict(lambda: itertools.count(1))
        self._under_way: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._indexes = itertools.count(1)
        self._bytes: dict[int, np.ndarray] = {}
        self._of_block: dict[tuple[str, int], list[int]] = defaultdict(list)

    def join(self, rules: Rules) -> None:
        """A plane of a run with these rules; the first makes the ledger.

        Raises:
            DataPlaneError: the hub serves a run with other rules.
        """
        with self._changed:
            if self._ledger is None:
                self._ledger, self._rules = Ledger(rules), rules
            elif rules != self._rules:
                raise DataPlaneError(
                    "a hub serves one run: this plane's recipe or numbers of processes differ from the first's"
                )

    def ask(self, make: MakeOp, *, what: str, wait_s: float, stop: StopFlag) -> ops.Answer:
        """The answer to an operation, waiting while it gives nothing.

        Raises:
            Stopped: while it waited.
        """
        until = time.monotonic() + wait_s
        with self._changed:
            op = make(1, 1)
            process = (op.who, op.life)
            seq = next(self._seqs[process])
            # Other threads of the process may still wait for their answers.
            under_way = self._under_way[process]
            under_way.add(seq)
            op = make(seq, min(under_way))
            try:
                while True:
                    answer = self._apply(op)
                    left = until - time.monotonic()
                    if not gives_nothing(answer) or left <= 0:
                        return answer
                    if stop.is_set():
                        raise Stopped(f"{op.who} was asked to stop while waiting to {what}")
                    self._changed.wait(min(left, _LOOK_S))
            finally:
                under_way.discard(seq)

    def write(self, stream: str, blocks: Sequence[tuple[int, Mapping[str, Packing]]]) -> list[Refs]:
        """Keep columns of blocks, by first row id."""
        written: list[Refs] = []
        for first, columns in blocks:
            refs = {}
            for column, packing in columns.items():
                data = packing.packed()
                data.flags.writeable = False
                with self._changed:
                    index = next(self._indexes)
                    self._bytes[index] = data
                    self._of_block[stream, first].append(index)
                refs[column] = ops.Ref("memory", data.nbytes, index=index)
            written.append(refs)
        return written

    def read(self, refs: Sequence[ops.Ref]) -> list[np.ndarray]:
        """The bytes again.

        Raises:
            DataPlaneError: they are gone.
        """
        with self._changed:
            try:
                return [self._bytes[ref.index] for ref in refs]
            except KeyError as error:
                raise DataPlaneError("rows were cleared while another group read them") from error

    def discard(self, refs: Sequence[ops.Ref]) -> None:
        """Bytes that nobody needs."""
        with self._changed:
            for ref in refs:
                self._bytes.pop(ref.index, None)

    def close(self) -> None:
        """No plane asks any more: end the history."""
        if self._history is not None:
            self._history.close()

    def _apply(self, op: ops.AnyOp) -> ops.Answer:
        assert self._ledger is not None
        now = time.time()
        gone: set[tuple[str, int]] = set()
        for one in (*self._ledger.due(now), op):
            number = self._ledger.events
            answer, events = self._ledger.apply(one, now)
            if self._history is not None and events:
                self._history.append(number, events)
            gone |= {(e.stream, first) for e in events if e.kind in ("cleared", "dropped") for first, _ in e.blocks}
        if isinstance(op, ops.Fill):
            gone |= {(op.stream, first) for first in op.blocks if not self._ledger.holds(op.stream, first)}
        for block in gone:
            for index in self._of_block.pop(block, ()):
                self._bytes.pop(index, None)
        if self._ledger.take_news():
            self._changed.notify_all()
        return answer


class MemoryPlane(LedgerPlane):
    """One role's connection to a hub.

    Args:
        life: of the process; see :class:`hpcrl.dataplane.ledger.ops.Op`.
        wait_s: the longest that a put waits for room in its stream [s].
        lease_s: how long rows stay this process's after it was closed [s].
        stop: ends waits.
    """

    def __init__(
        self,
        member: Member,
        hub: MemoryHub,
        *,
        life: int,
        wait_s: float,
        lease_s: float,
        stop: StopFlag | None = None,
    ) -> None:
        hub.join(rules_of(member.recipe, member.processes))
        desk, store = _HubDesk(member.name, hub, stop or StopFlag()), _HubStore(hub)
        super().__init__(member, desk, store, life=life, wait_s=wait_s, lease_s=lease_s)


class _HubDesk:
    """Asks a hub on behalf of one plane."""

    def __init__(self, name: str, hub: MemoryHub, stop: StopFlag) -> None:
        self._name, self._hub, self._stop, self._open = name, hub, stop, True

    def ask(self, make: MakeOp, *, what: str, wait_s: float = 0.0) -> ops.Answer:
        """See :meth:`MemoryHub.ask`."""
        if not self._open:
            raise DataPlaneError(f"{self._name}: the connection to the data plane is closed")
        return self._hub.ask(make, what=what, wait_s=wait_s, stop=self._stop)

    def close(self) -> None:
        """Ask nothing more."""
        self._open = False


class _HubStore:
    """Keeps bytes in a hub."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    def write(self, stream: str, blocks: Sequence[tuple[int, Mapping[str, Packing]]]) -> list[Refs]:
        """See :meth:`MemoryHub.write`."""
        return self._hub.write(stream, blocks)

    def read(self, refs: Sequence[ops.Ref]) -> list[np.ndarray]:
        """See :meth:`MemoryHub.read`."""
        return self._hub.read(refs)

    def discard(self, refs: Sequence[ops.Ref]) -> None:
        """See :meth:`MemoryHub.discard`."""
        self._hub.discard(refs)

    def freed(self, segments: Mapping[str, int], values: Sequence[int]) -> None:
        """A hub has no segments and no storage units; it clears bytes with their blocks."""

    def close(self) -> None:
        """The bytes stay the hub's."""
