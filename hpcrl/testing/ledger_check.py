"""Has the checker look at what a :class:`hpcrl.testing.ledger_run.LedgerRun` left, or at events made of it."""

from __future__ import annotations

from collections.abc import Iterable

from hpcrl.algorithms.pacing import version_needed
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.verify.checker import Checker
from hpcrl.dataplane.verify.commits import Commits
from hpcrl.dataplane.verify.prompts import PromptSum
from hpcrl.dataplane.verify.report import Report
from hpcrl.dataplane.verify.stream import Limits
from hpcrl.testing.ledger_run import STREAM, Left, Shape


def checked(left: Left, shape: Shape, events: Iterable[tuple[int, int, Event]] | None = None, *, over: bool = True) -> Report:
    """The checker's report.

    Args:
        events: in place of those that the run left.
    """

    def needed(prompt: int) -> int:
        return version_needed(prompt // shape.prompts_per_step, window=shape.window, version_lag=shape.lag)

    checker, now = Checker({STREAM: Limits(samples=shape.samples, version_lag=shape.lag, needed=needed)}), 0
    for attempt, number, event in left.events if events is None else events:
        if attempt != now:
            checker.begin(attempt)
            now = attempt
        checker.see(number, event)
    steps = {step: PromptSum(prompts) for step, prompts in left.steps.items()}
    commits = Commits(stream=STREAM, before=left.cursor, after=left.cursor, place="record.json", steps=steps)
    return checker.finish(commits, over=over)
