"""The leading trainer's side of its trajectories: rows are packed at once, and made durable by a process beside it.

Nothing here holds up training, nor ends it: what cannot be kept is left out and said so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hpcrl.dataplane.interface import Batch, ColumnData
from hpcrl.dataplane.labels import labels_of
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.layout import SavedBlock
from hpcrl.dataplane.trajectories.layout import STREAM, TAKEN, folder_of
from hpcrl.dataplane.trajectories.request import Failed, Reply, Request, decode_reply, encode
from hpcrl.run.beside import Beside
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host

log = logging.getLogger(__name__)

# Without a save, rows are made durable so often [s], or when so many bytes wait.
EVERY_S = 60.0
BATCH_BYTES = 16 << 20
# A file that has grown to this is followed by the next [bytes].
FILE_BYTES = 16 << 20
# What waits beyond this is left out: the file system is too slow for it, or away.
MOST_BYTES = 512 << 20
_MODULE = "hpcrl.dataplane.trajectories.agent"


def chosen(sizes: Sequence[int], samples: int) -> list[int]:
    """How many rows to keep of each prompt's: whole prompts in their order, the last one cut. Pure.

    Args:
        samples: of all of them together; -1 = all.
    """
    left = sum(sizes) if samples < 0 else samples
    kept = []
    for size in sizes:
        kept.append(min(size, left))
        left -= kept[-1]
    return kept


class Keeper:
    """Keeps rows of an attempt. Used by one thread.

    Args:
        after: the step that the attempt goes on from.
        samples: rows kept of each step; 0 = none, -1 = all.

    Attributes:
        left_out: rows that could not be kept.
    """

    def __init__(self, attempt: Attempt, *, after: int, samples: int, every_s: float = EVERY_S) -> None:
        self._samples, self._every_s = samples, every_s
        self._request = Request(folder=str(folder_of(attempt)), run_id=attempt.run.run_id, attempt=attempt.number, after=after)
        self.left_out = 0
        self._waiting: list[tuple[int, list[SavedBlock]]] = []
        self._file, self._file_bytes = 0, 0
        self._writing: _Writing | None = None
        self._process: Beside | None = None
        self._due = time.monotonic() + every_s
        if samples:
            # Its process starts, and says where the attempt began, while the first batch is waited for.
            self._write([])

    def keep(self, step: int, groups: Sequence[Batch], advantages: Sequence[float]) -> None:
        """Keep rows that a step was trained on; cheap.

        Args:
            step: from 1.
            groups: a batch of one block for each prompt, with the columns :data:`TAKEN`.
            advantages: of all rows.
        """
        if not self._samples:
            return
        self._heed()
        blocks, start = [], 0
        for group, rows in zip(groups, chosen([len(group) for group in groups], self._samples), strict=True):
            if rows:
                blocks.append(_saved(step, group, rows, advantages[start : start + rows]))
            start += len(group)
        if self._waiting_bytes() > MOST_BYTES:
            self.left_out += sum(block.rows for block in blocks)
            log.warning("the trajectories of step %d are left out: %d MB wait to be written", step, MOST_BYTES >> 20)
            return
        self._waiting.append((step, blocks))
        if time.monotonic() >= self._due or self._waiting_bytes() >= BATCH_BYTES:
            self.begin()

    def begin(self) -> None:
        """Begin to make everything durable, unless that is under way."""
        self._heed()
        if self._writing is None and self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def settled(self) -> bool:
        """Whether everything is durable; begins to make it so if not."""
        self.begin()
        return self._writing is None and not self._waiting

    def settle(self, seconds: float) -> bool:
        """Wait until everything is durable; whether it is."""
        until = time.monotonic() + seconds
        tried = False
        while self._writing is not None or (self._waiting and not tried):
            if self._writing is None:
                tried = True
                self.begin()
            else:
                self._writing.join(max(0.0, until - time.monotonic()))
                if self._writing.is_alive():
                    log.warning("trajectories are still being written after %g s; training goes on", seconds)
                    return False
            self._heed()
        return not self._waiting

    def close(self, seconds: float = 10.0) -> None:
        """Make everything durable, and end the process. Safe to call twice."""
        self.settle(seconds)
        if self._process is not None:
            self._process.close()
            self._process = None

    def _write(self, steps: list[tuple[int, list[SavedBlock]]]) -> None:
        onto = self._file if self._file_bytes < FILE_BYTES else 0
        blocks = [block for _, of_step in steps for block in of_step]
        request = msgspec.structs.replace(self._request, blocks=len(blocks), onto=onto)
        if steps:
            request = msgspec.structs.replace(request, first_step=steps[0][0], last_step=steps[-1][0])
        self._due = time.monotonic() + self._every_s
        self._writing = _Writing(self._open, request, steps)
        self._writing.start()

    def _open(self) -> Beside:
        if self._process is not None and not self._process.alive:
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = Beside(_MODULE)
        return self._process

    def _heed(self) -> None:
        writing = self._writing
        if writing is None or writing.is_alive():
            return
        self._writing = None
        if isinstance(writing.reply, Failed):
            log.warning("%s; it is tried again", writing.reply.error)
            # Before those that came later.
            self._waiting = writing.steps + self._waiting
        elif writing.steps:
            self._file, self._file_bytes = writing.reply.first_step, writing.reply.bytes

    def _waiting_bytes(self) -> int:
        return sum(data.nbytes for _, blocks in self._waiting for block in blocks for data in block.columns.values())


class _Writing(threading.Thread):
    """A request under way.

    Attributes:
        reply: once the thread has ended.
    """

    def __init__(self, open_process: Callable[[], Beside], request: Request, steps: list[tuple[int, list[SavedBlock]]]) -> None:
        super().__init__(name="trajectories", daemon=True)
        self.steps = steps
        self.reply: Reply = Failed("it was not begun")
        self._open, self._request = open_process, request

    def run(self) -> None:
        """Ask, and wait for the answer."""
        what = f"trainer rank 0 on {host()}: trajectories cannot be written"
        try:
            process = self._open()
        except OSError as error:
            self.reply = Failed(f"{what}: their process cannot be started: {error}")
            return
        for message in encode(self._request, [block for _, blocks in self.steps for block in blocks]):
            process.send(message)
        answer = process.receive()
        self.reply = decode_reply(answer) if answer is not None else Failed(f"{what}: their process {process.how_it_ended()}")


def _saved(step: int, group: Batch, rows: int, advantages: Sequence[float]) -> SavedBlock:
    ids = group.row_ids[:rows]
    own: dict[str, ColumnData] = {
        "step": np.full(rows, step, np.int32),
        "advantage": np.asarray(advantages, np.float32),
    }
    columns: Mapping[str, Any] = {**own, **{name: group.columns[name][:rows] for name in TAKEN}}
    packed = {column.name: pack(STREAM.name, column, ids, columns[column.name]) for column in STREAM.columns}
    return SavedBlock(STREAM.name, int(ids[0]), rows, packed, labels_of(STREAM, columns))
