"""What a new attempt's ledger begins with: the rows that an earlier attempt's newest snapshot has and nobody has trained."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.ledger.rules import Rules
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.dataplane.store import INLINE_BYTES
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt

log = logging.getLogger(__name__)

Adopted = tuple[Ledger, list[Event]]


@dataclass(frozen=True)
class Reached:
    """How far training has come, as the trainer's newest save says.

    Attributes:
        version: of the policy.
        below: every prompt of a lower number was trained; and so were those of ``beyond``.
    """

    version: int = 0
    below: int = 0
    beyond: AbstractSet[int] = frozenset()


def has_snapshots(attempt: Attempt, *, before: bool = False) -> bool:
    """Whether the run has any; only those of earlier attempts count with ``before``. Cheap: nothing is opened."""
    found = (int(path.parts[-4].removeprefix("attempt_")) for path in _manifests(attempt))
    return any(not before or number < attempt.number for number in found)


class Restorer:
    """Makes the ledger of an attempt that begins.

    Args:
        folder: the attempt's, in the node's shared memory.
        node: name of this node in the refs.
        who, life: of the desk's process, which writes what it restores into segments of its own.
        inline: keep all bytes in the ledger: some are needed on other nodes.
    """

    def __init__(
        self,
        attempt: Attempt,
        recipe: Recipe,
        rules: Rules,
        *,
        reached: Reached,
        folder: Path,
        node: str,
        who: str,
        life: int,
        inline: bool,
    ) -> None:
        self._attempt, self._recipe, self._rules, self._reached = attempt, recipe, rules, reached
        self._folder, self._node, self._who, self._life, self._inline = folder, node, who, life, inline

    def __call__(self, now: float) -> Adopted | None:
        """A ledger with what is taken over, and its events; None if there is nothing, or nothing that can be used."""
        if not has_snapshots(self._attempt, before=True):
            return None
        try:
            return self._restore(now)
        except (DataPlaneError, ValueError) as error:
            log.error("the run's newest snapshot is not used, and this attempt begins with an empty queue: %s", error)
            return None

    def _restore(self, now: float) -> Adopted | None:
        # Brings h5py, which a first attempt does without.
        from hpcrl.dataplane.snapshot.merge import Merged, check_schema
        from hpcrl.dataplane.snapshot.read import newest_snapshot
        from hpcrl.dataplane.snapshot.restore import RestorePlan, Start, plan_restore

        began = time.monotonic()
        snapshot = newest_snapshot(self._attempt.run)
        if snapshot is None or snapshot.manifest.attempt >= self._attempt.number:
            return None
        rules, recipe, reached = self._rules, self._recipe, self._reached
        start = Start(
            trained_below=reached.below,
            trained_beyond=reached.beyond,
            version=reached.version,
            version_lag=recipe.limits.version_lag,
            created={name: frozenset(stream.created) for name, stream in rules.streams.items()},
            group_rows={s.name: recipe.schedule.samples_per_prompt for s in recipe.streams if s.prompt},
        )

        def blocks(merged: Merged, plan: RestorePlan, keep: Callable[[np.ndarray], Ref]) -> Iterator[LiveBlock]:
            for stream in merged.columns:
                for block in merged.blocks(stream, plan.firsts(stream)):
                    refs = {name: keep(data) for name, data in block.columns.items()}
                    done = self._done(stream, frozenset(refs))
                    yield LiveBlock(stream, block.first, block.rows, refs, block.labels, done)

        ledger = Ledger(rules)
        keeper = _Bytes(self._folder, self._who, self._life, self._node, inline=self._inline)
        try:
            with snapshot.open() as merged:
                check_schema(merged.columns, recipe.streams, snapshot.folder)
                plan = plan_restore(merged.infos(), start)
                events = ledger.adopt(blocks(merged, plan, keeper.keep), now)
        except BaseException:
            keeper.undo()
            raise
        finally:
            keeper.close()
        log.info(
            "%d rows in %d blocks of snapshot %s are in the queue again, after %.2f s; left out: %s",
            sum(block.rows for block in plan.adopt),
            len(plan.adopt),
            snapshot.folder,
            time.monotonic() - began,
            ", ".join(f"{rows} rows ({reason})" for reason, rows in plan.rows_left_out().items()) or "none",
        )
        return ledger, events

    def _done(self, stream: str, columns: AbstractSet[str]) -> list[str]:
        """Groups whose work on a block is there already: they filled all that they owe."""
        rules = self._rules.streams[stream]
        owed: dict[str, set[str]] = {}
        for column, groups in rules.fillers.items():
            for group in groups:
                owed.setdefault(group, set()).add(column)
        return [group for group in rules.readers if group in owed and owed[group] <= columns and group != rules.final]


class _Bytes:
    """Keeps bytes where readers find them: small ones in the ref, others in segments that only the ledger knows of."""

    def __init__(self, folder: Path, who: str, life: int, node: str, *, inline: bool) -> None:
        self._arguments, self._inline = (folder, who, life, node), inline
        self._folder = folder
        self._writer: SegmentWriter | None = None
        self._names: dict[str, None] = {}

    def keep(self, data: np.ndarray) -> Ref:
        if self._inline or data.nbytes <= INLINE_BYTES:
            return Ref(kind="inline", size=data.nbytes, data=data.tobytes())
        if self._writer is None:
            self._writer = SegmentWriter(*self._arguments, spare_bytes=0)
        ref = self._writer.write([data])
        self._names[ref.where] = None
        return ref

    def undo(self) -> None:
        """Nobody will hear of what was kept."""
        for name in self._names:
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _manifests(attempt: Attempt) -> Iterator[Path]:
    return attempt.run.path.glob("attempt_*/snapshots/[0-9]*/manifest.json")
