"""The leading trainer's saves: what each is about, and the rows that it lets go. Imported only in a process that trains."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.manifest import QueueSnapshot
from hpcrl.checkpoint.state.saver import PARTS_S, About, NotSaved, Saved
from hpcrl.dataplane.interface import Batch, Block
from hpcrl.dataplane.snapshot.newest import newest_manifest
from hpcrl.roles.samples import SAMPLES

if TYPE_CHECKING:
    from hpcrl.engines.titan.trainer import TitanTrainer
    from hpcrl.roles.context import RoleContext
    from hpcrl.run.directory import RunDirectory

log = logging.getLogger(__name__)

# Where rows wait for room, a save that failed is tried again after so long.
AGAIN_S = 10.0


class Saves:
    """What rank 0 knows of them. A row is acknowledged only once a committed save holds what it taught.

    Args:
        identity: what the run trains with.
        step: of the newest save; -1 = there is none.

    Attributes:
        committed: step of the newest committed save; -1 = none.
    """

    def __init__(self, context: RoleContext, engine: TitanTrainer, identity: Identity, *, step: int) -> None:
        self._context, self._engine, self._identity = context, engine, identity
        self.committed = step
        self._waiting: list[Block] = []
        self._covered: list[Block] = []
        # Of what waits: asked for several times a second, and there may be very many blocks.
        self._waiting_rows = 0
        self._most = context.recipe.stream(SAMPLES).capacity_rows
        self._metrics: dict[str, float] = {}
        self._again_at = 0.0

    def trained(self, blocks: list[Block], figures: Mapping[str, Any]) -> None:
        """Rows that were trained in the step that has just ended, and its figures."""
        self._waiting += blocks
        self._waiting_rows += _rows(blocks)
        numbers = ((name, float(value)) for name, value in figures.items() if isinstance(value, int | float))
        self._metrics = {name: value for name, value in numbers if math.isfinite(value)}

    @property
    def under_way(self) -> bool:
        """Whether a save is being made."""
        return self._engine.saving

    @property
    def is_urgent(self) -> bool:
        """Whether rows that wait for a save take all the room there is, and none is being made."""
        return self._waiting_rows >= self._most and not self.under_way and time.monotonic() >= self._again_at

    def begin(self, cursor: Cursor) -> None:
        """Begin one of all that was trained; the other ranks must have been told."""
        context, run = self._context, self._context.attempt.run
        context.phase("checkpoint", step=cursor.step)
        self._covered, self._waiting, self._waiting_rows = self._waiting, [], 0
        snapshot = newest_manifest(run)
        about = About(
            run_id=run.run_id,
            attempt=context.attempt.number,
            policy_version=cursor.step,
            cursor=cursor,
            rows=Batch(SAMPLES, {}, tuple(self._covered)).row_ids,
            queue=None if snapshot is None else QueueSnapshot(*snapshot),
            mlflow_run=_mlflow_run(run),
            identity=self._identity,
            metrics=self._metrics,
        )
        self._engine.begin_save(run.state, about)

    def heed(self) -> None:
        """See whether the one being made has ended; its rows are let go, or wait for the next. Cheap."""
        self._see(self._engine.poll_save())

    def finish(self, *, seconds: float = PARTS_S) -> str:
        """Wait for the one being made, if there is one; why it was not committed, empty if it was."""
        ended = self._engine.finish_save(seconds=seconds)
        self._see(ended)
        return ended.error if isinstance(ended, NotSaved) else ""

    def _see(self, ended: Saved | NotSaved | None) -> None:
        if ended is None:
            return
        context = self._context
        if isinstance(ended, NotSaved):
            log.error("%s; the save before it stays, and the next one is made when it is due", ended.error)
            context.journal.write("not_saved", step=ended.step, error=ended.error)
            self._waiting_rows += _rows(self._covered)
            self._waiting = self._covered + self._waiting
            self._covered, self._again_at = [], time.monotonic() + AGAIN_S
            return
        for problem in ended.problems:
            log.warning("%s", problem)
        self.committed = ended.name.step
        context.queue.acknowledge(Batch(SAMPLES, {}, tuple(self._covered)))
        context.journal.write(
            "saved",
            step=ended.name.step,
            save=str(ended.name),
            rows=_rows(self._covered),
            bytes=ended.bytes,
            seconds=ended.seconds,
            stalled_s=ended.stalled_s,
        )
        self._covered = []


def _rows(blocks: Sequence[Block]) -> int:
    return sum(len(block.row_ids) for block in blocks)


def _mlflow_run(run: RunDirectory) -> str:
    """The run's id in MLflow; of the tracking server that came to know it last, if there are several; empty if none does."""
    try:
        known = json.loads((run.path / "mlflow.json").read_text())
        return next((str(one["mlflow_run"]) for one in reversed(known.values()) if one["mlflow_run"]), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
