"""What a time limit holds: whether a job can work at all, and how many jobs a run will take. Pure, but for :func:`of_run`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.launch.layout import Layout
from hpcrl.launch.pace import Pace, pace_of
from hpcrl.launch.render import JobFacts
from hpcrl.recipe import Recipe
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

# What the supervisor takes beside the roles' own drain, before Slurm's end.
_GRACE_S = 30


def signal_s(recipe: Recipe) -> int:
    """So long before its time limit a run is told to save [s]."""
    return math.ceil(recipe.limits.drain_s) + _GRACE_S


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """A limit, what is to be done within it, and what is known of that.

    Attributes:
        minutes: the limit.
        signal_s: so long before the limit the run is told to save [s].
        steps: that are left to train.
        pace: of an earlier run, or of this one; None = not known.
    """

    minutes: int
    signal_s: int
    steps: int
    pace: Pace | None = None

    @property
    def problems(self) -> list[str]:
        """Why no job of the run would get anywhere."""
        left = self.minutes * 60 - self.signal_s
        if left <= 0:
            return [
                f"a time limit of {self.minutes} minutes leaves no time to work: saving may take {self.signal_s} s of it "
                f"(limits.drain_s and the supervisor's own time); ask for more --time"
            ]
        pace = self.pace
        if pace is None or self.steps < 1 or pace.start_s + pace.step_s + max(0.0, pace.save_s - self.signal_s) <= left:
            return []
        needed = pace.start_s + pace.step_s + max(pace.save_s, self.signal_s)
        return [
            f"a time limit of {self.minutes} minutes does not hold one step, so the run would never get on: run {pace.run} "
            f"took {_duration(pace.start_s)} to start and {_duration(pace.step_s)} a step (median of {pace.steps}), and "
            f"{_duration(max(pace.save_s, self.signal_s))} are kept for the save; ask for more --time, at least "
            f"{math.ceil(needed / 60)} minutes"
        ]

    @property
    def estimate(self) -> str:
        """How many jobs the run will take; empty where nothing is known, or nothing is left to train."""
        pace, left = self.pace, self.minutes * 60 - self.signal_s
        if pace is None or self.steps < 1 or self.problems:
            return ""
        source = f"median of {_duration(pace.step_s)} a step, {pace.steps} steps of run {pace.run}"
        fit = max(1, int((left - pace.start_s) / pace.step_s))
        if fit >= self.steps:
            whole = pace.start_s + self.steps * pace.step_s
            return f"{_steps(self.steps)} fit into the time limit: about {_duration(whole)} ({source})"
        requeues = math.ceil(self.steps / fit) - 1
        again = "1 requeue" if requeues == 1 else f"{requeues} requeues"
        return f"about {_steps(fit)} fit into {self.minutes} minutes, so {self.steps} take {again} ({source})"


def of_run(run: RunDirectory) -> TimeLimit | None:
    """The limit of a further job for a run, with the run's own pace; None where its records do not tell."""
    try:
        recipe = json.loads((run.path / "recipe.json").read_text())
        layout = Layout.from_json((run.path / "layout.json").read_text())
        facts = JobFacts.from_json((run.path / "job.json").read_text(), run.path)
        return TimeLimit(
            minutes=layout.minutes,
            signal_s=facts.signal_s,
            steps=recipe["schedule"]["steps"] - read_cursor(run.state).step,
            pace=pace_of(run, recipe["groups"]),
        )
    except (OSError, CheckFailed, ValueError, KeyError, TypeError):
        return None


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
