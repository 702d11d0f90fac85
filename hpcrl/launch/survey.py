"""Runs with what each is doing, from their records and Slurm together."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcrl.launch.jobs import Seen, is_cancelled, is_cluster_run, look, recorded_jobs
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.slurm_text import Job
from hpcrl.launch.standing import Records, Standing, joined_in_words, standing
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import CAUSED_S, DoneRecord, DoneRecords
from hpcrl.supervise.drain import drain_of
from hpcrl.tracking.last import last_step
from hpcrl.tracking.state import judge, planned_steps, processes

# Characters of an error in a table.
SHOWN = 100


@dataclass(frozen=True)
class Surveyed:
    """A run at a moment.

    Attributes:
        job: its newest job as Slurm knows it; ``job_id`` is known from the run's own list too.
        joined: the newest job of each component that is one of its own, as Slurm knows it.
        age_s: seconds since the run was made.
        silent: why Slurm could not be asked; empty where it was not needed or answered.
    """

    run: RunDirectory
    name: str
    standing: Standing
    job: Job | None
    job_id: int | None
    attempt: int
    step: int | None
    steps: int | None
    reward: float | None
    age_s: float
    silent: str = ""
    joined: Mapping[str, Job] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain data, for ``--json``."""
        return {
            "run": self.run.path.name,
            "path": str(self.run.path),
            "run_id": self.run.run_id,
            "name": self.name,
            "state": self.standing.word,
            "why": self.standing.why,
            "job": self.job_id,
            "slurm": None if self.job is None else {"state": self.job.state, "reason": self.job.reason},
            "joined": {
                name: {"job": job.id, "state": job.state, "reason": job.reason, "words": joined_in_words(name, job)}
                for name, job in self.joined.items()
            },
            "attempt": self.attempt,
            "step": self.step,
            "steps": self.steps,
            "reward": self.reward,
            "age_s": round(self.age_s, 1),
            "silent": self.silent,
        }


@dataclass(frozen=True)
class _Records:
    ending: Records | None
    attempt: int
    step: int | None
    steps: int | None
    reward: float | None
    failure: str = ""


def survey(runs: Sequence[RunDirectory], slurm: Slurm, now: float | None = None) -> list[Surveyed]:
    """What each run is doing, in the given order; Slurm is asked once or twice for all of them together."""
    records = {run.run_id: _records(run) for run in runs}
    settled = [run_id for run_id, held in records.items() if held.ending in ("finished", "failed")]
    seen = look(runs, slurm, settled=settled)
    moment = time.time() if now is None else now
    return [_surveyed(run, records[run.run_id], seen.get(run.run_id, Seen()), moment) for run in runs]


def _surveyed(run: RunDirectory, records: _Records, seen: Seen, now: float) -> Surveyed:
    held = json.loads((run.path / "run.json").read_text())
    listed = recorded_jobs(run)
    job = seen.newest
    found = standing(
        records.ending,
        job=job,
        joined=seen.newest_joined,
        on_cluster=is_cluster_run(run),
        silent=seen.silent,
        cancelled=is_cancelled(run),
    )
    if found.word == "failed" and not found.why:
        found = replace(found, why=records.failure)
    return Surveyed(
        run=run,
        name=str(held.get("name", "")),
        standing=found,
        job=job,
        job_id=job.id if job is not None else listed[-1].job if listed else None,
        attempt=records.attempt,
        step=records.step,
        steps=records.steps,
        reward=records.reward,
        age_s=now - float(held.get("created", now)),
        silent=seen.silent,
        joined=seen.newest_joined,
    )


def _records(run: RunDirectory) -> _Records:
    try:
        steps = planned_steps(json.loads((run.path / "recipe.json").read_text()))
    except (OSError, ValueError):
        steps = None
    attempts = run.attempts()
    if not attempts:
        return _Records(None, 0, None, steps, None)
    last = last_step(run) or {}
    step, reward = last.get("step"), last.get("reward")
    attempt = attempts[-1]
    records = DoneRecords(attempt)
    failure = records.first_failure()
    text = "" if failure is None else f"{failure.process} on {failure.host}: {failure.error.partition(chr(10))[0][:SHOWN]}"
    return _Records(_ending(attempt, records, failure, step, steps), attempt.number, step, steps, reward, text)


def _ending(attempt: Attempt, records: DoneRecords, failure: DoneRecord | None, step: int | None, steps: int | None) -> Records:
    ending = judge(records.read(), set(processes(attempt)), step, steps)
    drain = drain_of(attempt)
    # What was killed because it did not end in time when it was asked to is no failure of the run.
    if failure is not None and drain is not None and failure.t >= drain.t - CAUSED_S:
        return "stopped"
    return ending
