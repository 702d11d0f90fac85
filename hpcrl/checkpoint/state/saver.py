"""Saves the trainer's state while training goes on.

A tensor of the state changes only in the optimizer's step. So :meth:`Saver.begin` only starts a thread that copies them to
host memory, the next optimizer step waits for what is left of that (:meth:`Saver.copied`), and a process of its own writes
and commits. Rank 0 hears of the end by :meth:`Saver.poll`.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state import rng
from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.layout import SaveName, StateError, next_number
from hpcrl.checkpoint.state.manifest import Manifest, Mesh, QueueSnapshot
from hpcrl.checkpoint.state.memory import SharedMemory
from hpcrl.checkpoint.state.plan import Planner
from hpcrl.checkpoint.state.process import WriterProcess
from hpcrl.checkpoint.state.ranks import Ranks
from hpcrl.checkpoint.state.request import Commit, Failed, Job
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saving import Saving
from hpcrl.run.disk import explain, make_folder
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.failpoints import reach
from hpcrl.run.stop import wait_for

log = logging.getLogger(__name__)

# A rank that has not written its part by then is away, or its file system is.
PARTS_S = 900.0
_LET_GO_S = 60.0


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a save says beside the tensors; see :class:`~hpcrl.checkpoint.state.manifest.Manifest`.

    Attributes:
        rows: int64 (rows,), see :class:`~hpcrl.checkpoint.state.manifest.Trained`.
    """

    run_id: str = ""
    attempt: int = 1
    policy_version: int = 0
    cursor: Cursor = Cursor()
    rows: np.ndarray | None = None
    queue: QueueSnapshot | None = None
    mlflow_run: str = ""
    identity: Identity = Identity()
    metrics: dict[str, float] = {}


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A committed save.

    Attributes:
        path: its folder.
        seconds: from the begin to the commit.
        stalled_s: how long training stood still for it, on rank 0.
        problems: with the removal of older ones.
    """

    name: SaveName
    path: Path
    bytes: int
    seconds: float
    stalled_s: float
    problems: list[str] = []


class NotSaved(msgspec.Struct, frozen=True, kw_only=True):
    """A save that did not come to be; earlier ones are as they were."""

    step: int
    error: str


class Saver:
    """One rank's side of all saves of a trainer.

    Args:
        folder: ``RUN/state``.
        mesh: names and sizes of the ranks' dimensions.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, keep: Keep, mesh: Mesh | None = None, parts_s: float = PARTS_S) -> None:
        self._folder, self._ranks, self._keep, self._parts_s = folder, ranks, keep, parts_s
        self._mesh = mesh or Mesh(ranks.size, {})
        self._planner = Planner(ranks)
        self._memory: SharedMemory | None = None
        self._writer: WriterProcess | None = None
        self._saving: Saving | None = None
        self._refused: NotSaved | None = None

    @property
    def folder(self) -> Path:
        """Of all saves."""
        return self._folder

    @property
    def busy(self) -> bool:
        """Whether a save is under way here whose end :meth:`poll` has not told."""
        return self._saving is not None or self._refused is not None

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Plan, and start the writer, so that the first save need not wait for it. A collective; :meth:`begin` calls it too."""
        planned = self._planner.plan(tensors)
        if self._memory is None:
            self._memory = SharedMemory(planned.places)
            if any(self._planner.tensor(item).device.type == "cuda" for item in planned.plan.items):
                self._memory.pin()
        if self._writer is not None and not self._writer.alive:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            try:
                self._writer = WriterProcess(planned, self._memory.descriptor)
            except OSError as error:
                log.error(
                    "%s", explain(f"trainer rank {self._ranks.rank}", "the process that writes saves cannot start", error)
                )

    def begin(self, tensors: dict[str, Any], step: int, about: About | None) -> None:
        """Begin a save; the tensors may change after :meth:`copied`. A collective.

        Args:
            tensors: by name; sharded ones as DTensors. The same ones, in placement and shape, each time.
            about: on rank 0.

        Raises:
            StateError: the save before has not ended.
        """
        began = time.monotonic()
        if self._ranks.rank == 0 and self.busy:
            raise StateError(f"the save of step {step} cannot begin before the end of the one before was polled")
        self._let_go()
        reach("state.begin", self._folder)
        self.prepare(tensors)
        name = self._new_folder(step, about)
        if name is None:
            return
        job = Job(
            folder=str(self._folder),
            attempt=name.attempt,
            step=step,
            number=name.number,
            rank=self._ranks.rank,
            world_size=self._ranks.size,
            rng=rng.capture(),
            commit=None if about is None else self._commit(name, about),
        )
        assert self._memory is not None
        self._saving = Saving(name, job, self._planner.plan(tensors), self._planner.tensor, self._memory, self._writer)
        self._saving.start()
        self._saving.stalled_s = time.monotonic() - began

    def copied(self) -> None:
        """Wait until the tensors may change again."""
        if self._saving is not None and not self._saving.copied.is_set():
            began = time.monotonic()
            self._saving.copied.wait()
            self._saving.stalled_s += time.monotonic() - began

    def poll(self) -> Saved | NotSaved | None:
        """On rank 0, once, how the save that was begun last ended; None while it has not."""
        if self._refused is not None:
            refused, self._refused = self._refused, None
            return refused
        saving = self._saving
        if saving is None or saving.is_alive():
            return None
        self._saving = None
        if isinstance(saving.reply, Failed):
            return NotSaved(step=saving.save.step, error=saving.reply.error)
        reach("state.committed", self._folder)
        return Saved(
            name=saving.save,
            path=self._folder / str(saving.save),
            bytes=saving.reply.bytes,
            seconds=saving.seconds,
            stalled_s=saving.stalled_s,
            problems=saving.reply.problems,
        )

    def finish(self, *, seconds: float) -> Saved | NotSaved | None:
        """:meth:`poll` that waits; None if no save is under way."""
        if not self.busy:
            return None
        what = f"the save of step {self._saving.save.step} to be committed" if self._saving else "a save"
        try:
            return wait_for(what, self.poll, seconds=seconds)  # type: ignore[return-value]
        except DeadlineExceeded as error:
            assert self._saving is not None
            return NotSaved(step=self._saving.save.step, error=f"{error} in {self._folder / str(self._saving.save)}")

    def close(self) -> None:
        """End the writer, and a save that is under way. Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._saving is not None:
            self._saving.join()
            self._saving = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _let_go(self) -> None:
        """On other ranks than 0: what they write ends by itself, unless their file system hangs while rank 0's does not."""
        if self._saving is None:
            return
        self._saving.join(_LET_GO_S)
        if self._saving.is_alive() and self._writer is not None:
            self._writer.close()
            self._writer = None
            self._saving.join(_LET_GO_S)
        self._saving = None

    def _new_folder(self, step: int, about: About | None) -> SaveName | None:
        """Made by rank 0, which says the number of it, and the attempt; None where it cannot be made."""
        number, attempt = 0, 0
        if self._ranks.rank == 0:
            assert about is not None, "rank 0 says what the save is about"
            attempt = about.attempt
            try:
                number = self._make_folder(step, attempt)
                reach("state.folder", self._folder)
            except OSError as error:
                text = str(explain("trainer rank 0", f"the state of step {step} cannot be saved", error, self._folder))
                self._refused = NotSaved(step=step, error=text)
        number = self._ranks.say(number)
        attempt = self._ranks.say(attempt)
        return SaveName(attempt, step, number) if number else None

    def _make_folder(self, step: int, attempt: int) -> int:
        make_folder(self._folder)
        number = next_number(self._folder, attempt)
        while True:
            try:
                make_folder(self._folder / str(SaveName(attempt, step, number)), new=True)
                return number
            except FileExistsError:
                number += 1

    def _commit(self, name: SaveName, about: About) -> Commit:
        manifest = Manifest(
            run_id=about.run_id,
            attempt=name.attempt,
            step=name.step,
            number=name.number,
            policy_version=about.policy_version,
            cursor=about.cursor.to_record(),
            mesh=self._mesh,
            queue=about.queue,
            mlflow_run=about.mlflow_run,
            identity=about.identity,
            metrics=about.metrics,
        )
        rows = np.zeros(0, np.int64) if about.rows is None else about.rows
        return Commit(manifest=manifest, trained=rows.astype("<i8").tobytes(), keep=self._keep, parts_s=self._parts_s)
