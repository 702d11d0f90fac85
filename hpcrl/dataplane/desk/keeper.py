"""The ledger as the desk keeps it: every change in the write-ahead log before it is answered, every event in the history."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hpcrl.dataplane.desk.restore import Adopted
from hpcrl.dataplane.desk.snapshots import Snapshots
from hpcrl.dataplane.history.writer import HistoryWriter
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.ops import Answer, AnyOp, Logged, decode_logged, durable, encode
from hpcrl.dataplane.ledger.rules import Rules
from hpcrl.dataplane.wal import WriteAheadLog

log = logging.getLogger(__name__)

LOG_NAME = "ledger.wal"
# So often the ledger must hear of the time, or it takes the gap for a stop of its process.
_TICK_S = 0.5
# Replaying this much takes about a second on a loaded node.
_COMPACT_BYTES = 4 << 20
_TIME = struct.Struct("<d")


class LedgerKeeper:
    """Goes on where the log in a folder ends.

    Args:
        folder: on the node's shared memory: survives the process.
        history: ``RUN/attempt_N/history``.
        restore: from the time [Unix s] to what a ledger without a log begins with, or None.
        snapshots: has some made; None = none.
        clock: Unix time [s].

    Raises:
        DataPlaneError: the log is held by another process, or damaged.
    """

    def __init__(
        self,
        rules: Rules,
        folder: Path,
        history: Path,
        *,
        restore: Callable[[float], Adopted | None] | None = None,
        snapshots: Snapshots | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._folder, self._snapshots = clock, folder, snapshots
        self._log = WriteAheadLog(folder / LOG_NAME)
        self._history = HistoryWriter(history, delay_s=0.05)
        self._ledger = Ledger(rules)
        operations, fresh = 0, True
        for kind, data in self._log.replay():
            fresh = False
            if kind == "state":
                self._ledger = Ledger.from_state(rules, data)
                continue
            number = self._ledger.events
            _, events = self._ledger.apply(decode_logged(data[_TIME.size :]), _TIME.unpack_from(data)[0])
            self._history.append(number, events)
            operations += 1
        if fresh and restore is not None and (adopted := restore(clock())) is not None:
            self._ledger, events = adopted
            # A state makes no events again. Were this process killed before it is logged, the next would make the same.
            self._history.append(0, events)
            self._history.flush()
            self._log.compact(self._ledger.state())
        elif operations or self._ledger.events:
            log.info("%d operations replayed, %d bytes; the ledger goes on", operations, self._log.size)

    @property
    def ledger(self) -> Ledger:
        """To look at."""
        return self._ledger

    def apply(self, op: AnyOp, encoded: bytes) -> Answer:
        """See :class:`hpcrl.dataplane.desk.server.Keeper`."""
        return self._carry_out(op, encoded, self._clock())

    def may_give(self, op: AnyOp) -> bool:
        """See :class:`hpcrl.dataplane.desk.server.Keeper`."""
        return self._ledger.may_give(op)

    def news(self) -> Iterable[str]:
        """See :class:`hpcrl.dataplane.desk.server.Keeper`."""
        return self._ledger.take_news()

    def tick(self) -> float:
        """See :class:`hpcrl.dataplane.desk.server.Keeper`."""
        now = self._clock()
        for op in self._ledger.due(now):
            self._carry_out(op, encode(op), now)
        if self._log.grown > max(_COMPACT_BYTES, 4 * (self._log.size - self._log.grown)):
            # A state makes no events again.
            self._history.flush()
            self._log.compact(self._ledger.state())
        for name in self._ledger.take_freed(""):
            (self._folder / name).unlink(missing_ok=True)
        if self._snapshots is not None:
            self._snapshots.tend(self._ledger)
        return _TICK_S

    def finish(self) -> None:
        """Nobody asks any more: make a last snapshot of what lives."""
        if self._snapshots is not None:
            self._snapshots.last(self._ledger)

    def close(self) -> None:
        """Let go of the files."""
        self._history.close()
        self._log.close()

    def _carry_out(self, op: Logged, encoded: bytes, now: float) -> Answer:
        number = self._ledger.events
        answer, events = self._ledger.apply(op, now)
        if durable(op, answer):
            self._log.append(_TIME.pack(now) + encoded)
        # Last: an event of an operation that a killed desk never logged would stand for another one's number.
        if events:
            self._history.append(number, events)
        return answer
