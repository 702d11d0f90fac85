"""How fast a run went, from the ends of its journals: a few reads of bounded size, however long it ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hpcrl.run.directory import Attempt, RunDirectory

# Holds some tens of steps with the phases between them.
PART_BYTES = 65_536
# Newer attempts may have ended before their first step.
_ATTEMPTS = 3

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What was measured of a run.

    Attributes:
        run: its directory's name.
        steps: how many steps ``step_s`` is the median of.
        step_s: of a training step, with its waits and its publishing [s].
        start_s: from the start of the job to the first step's end, less a step: starting, loading, compiling [s].
        save_s: median of the saves; 0 where none was seen [s].
    """

    run: str
    steps: int
    step_s: float
    start_s: float = 0.0
    save_s: float = 0.0


def pace_of(run: RunDirectory, groups: Iterable[str]) -> Pace | None:
    """The pace of a run's newest attempt with a training step; None if there is none.

    Args:
        groups: of its recipe; the first process of one of them writes the steps.
    """
    names = list(groups)
    for attempt in reversed(run.attempts()[-_ATTEMPTS:]):
        for group in names:
            first, last = _ends(attempt.journal / f"{group}.0.jsonl")
            pace = measure(first, last, began=_began(attempt), run=run.path.name)
            if pace is not None:
                return pace
    return None


def measure(first: Sequence[Record], last: Sequence[Record], *, began: float | None, run: str) -> Pace | None:
    """The pace out of a trainer's journal; None where it holds no step. Pure.

    Args:
        first: records from the journal's beginning on.
        last: records up to its end; they may be the same ones.
        began: when the job started, Unix time [s]; None takes the journal's beginning.
    """
    seconds = [float(record["step_s"]) for record in last if _is_step(record)]
    if not seconds:
        return None
    step_s = median(seconds)
    start_s = 0.0
    done = next((record for record in first if _is_step(record)), None)
    if done is not None and (began is not None or "t" in first[0]):
        start_s = max(0.0, float(done["t"]) - (float(first[0]["t"]) if began is None else began) - step_s)
    saves = [
        float(after["t"]) - float(record["t"])
        for records in (first, last)
        for record, after in pairwise(records)
        if record.get("kind") == "phase" and record.get("name") == "checkpoint" and "t" in record and "t" in after
    ]
    return Pace(run=run, steps=len(seconds), step_s=step_s, start_s=start_s, save_s=median(saves) if saves else 0.0)


def _is_step(record: Record) -> bool:
    seconds = record.get("step_s")
    return record.get("kind") == "step" and isinstance(seconds, int | float) and seconds > 0 and "t" in record


def _began(attempt: Attempt) -> float | None:
    try:
        return float(json.loads((attempt.path / "slurm.json").read_text())["t"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ends(path: Path) -> tuple[list[Record], list[Record]]:
    try:
        with open(path, "rb") as file:
            head = file.read(PART_BYTES)
            file.seek(max(0, path.stat().st_size - PART_BYTES))
            tail = file.read()
    except OSError:
        return [], []
    return _records(head), _records(tail)


def _records(data: bytes) -> list[Record]:
    found: list[Record] = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            # Cut at either end of the part, or torn by a crash.
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
