"""How far a run is and how it ended, from its journal and done-records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecord, DoneRecords
from hpcrl.tracking.figures import Figures

Ending = Literal["running", "finished", "failed", "stopped"]


def planned_steps(recipe: Any) -> int | None:
    """Training steps that a resolved recipe (its JSON) asks for; None where it does not say."""
    schedule = recipe.get("schedule") if isinstance(recipe, Mapping) else None
    steps = schedule.get("steps") if isinstance(schedule, Mapping) else None
    return steps if isinstance(steps, int) else None


def ending(attempt: Attempt, figures: Figures, steps: int | None) -> Ending:
    """How an attempt ended, by what it left on disk."""
    return judge(DoneRecords(attempt).read(), set(processes(attempt)), trained(figures), steps)


def judge(records: Mapping[str, DoneRecord], processes: set[str], step: int | None, steps: int | None) -> Ending:
    """How an attempt ended.

    Services are always stopped from outside, so ``stopped`` records alone do not make a run stopped early: a run whose
    last planned step is trained is finished.

    Args:
        processes: every role process that is known of.
        step: the last step trained.
        steps: steps planned.
    """
    if any(record.status == "failed" for record in records.values()):
        return "failed"
    if not records or processes - set(records):
        return "running"
    complete = step is not None and steps is not None and step >= steps
    if complete or all(record.status == "done" for record in records.values()):
        return "finished"
    return "stopped"


def trained(figures: Figures) -> int | None:
    """The last step trained."""
    steps = figures.steps()
    return steps[-1].step if steps else None


def processes(attempt: Attempt) -> list[str]:
    """Role processes of an attempt that left a log, a journal or a done-record, by group and rank."""
    names = {path.stem for path in attempt.journal.glob("*.jsonl")}
    names |= {path.stem for path in (attempt.path / "done").glob("[!.]*.json")}
    names |= {path.stem for path in (attempt.path / "logs").glob("*.log")}
    return sorted((name for name in names if _is_role(name)), key=by_rank)


def logs(attempt: Attempt) -> list[str]:
    """Names of everything that has a log in an attempt, role processes first."""
    names = [path.stem for path in (attempt.path / "logs").glob("*.log")]
    return sorted(names, key=lambda name: (not _is_role(name), by_rank(name)))


def by_rank(name: str) -> tuple[str, int]:
    """Sort key of ``group.rank``: by group, then by the rank's number."""
    group, _, rank = name.rpartition(".")
    return (group, int(rank)) if rank.isdecimal() else (name, -1)


def _is_role(name: str) -> bool:
    group, _, rank = name.rpartition(".")
    return rank.isdecimal() and group not in ("", "ignitor")
