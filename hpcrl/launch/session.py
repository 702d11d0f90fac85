"""One attempt of a run on this machine, as a person at a terminal sees it: progress, Ctrl-C, tracking, the report."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcrl.launch.local import LocalRun
from hpcrl.plan.plan import Plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, DoneRecords
from hpcrl.supervise.children import tail
from hpcrl.tracking.progress import Progress
from hpcrl.tracking.report import write_report

INTERRUPTED = 130
FEED_GRACE_S = 30.0


class Session:
    """Starts an attempt, shows it, and ends it well whatever happens.

    Args:
        plan: of this machine; says how many slots there are.
        tracking_uri: MLflow server, or None for a database in the run directory.
    """

    def __init__(
        self, recipe: Recipe, run: RunDirectory, plan: Plan, *, in_process: bool = False, tracking_uri: str | None = None
    ) -> None:
        self._recipe, self._run, self._plan = recipe, run, plan
        self._in_process, self._tracking_uri = in_process, tracking_uri
        self._interrupts = 0

    def run(self) -> int:
        """Until the end; returns the exit code: 0, the failed role's, or 130 after Ctrl-C."""
        attempt = self._run.new_attempt()
        progress = Progress(self._recipe, attempt)
        with self._interrupts_counted(), self._feed(attempt):
            code = self._run_in_process(attempt, progress) if self._in_process else self._run_processes(attempt, progress)
            progress.close(_summary(DoneRecords(attempt).first_failure(), attempt, code))
            try:
                write_report(self._run)
            except OSError as error:
                # The run has ended as it has; a full disk must not hide how.
                print(f"the report could not be written: {error}", file=sys.stderr)
        return code

    def _run_processes(self, attempt: Attempt, progress: Progress) -> int:
        run = LocalRun(attempt, len(self._plan.allocation.slots), drain_s=self._recipe.limits.drain_s)
        asked_at: float | None = None
        try:
            while not run.wait(0.5):
                progress.update()
                if self._interrupts and asked_at is None:
                    asked_at = time.monotonic()
                    run.drain()
                if self._interrupts > 1 or (asked_at and time.monotonic() - asked_at > run.finish_s):
                    run.kill()
        finally:
            run.kill()
        return run.code() or (INTERRUPTED if asked_at else 0)

    def _run_in_process(self, attempt: Attempt, progress: Progress) -> int:
        from hpcrl.launch.in_process import InProcessRun

        handler = logging.FileHandler(attempt.log("in_process"))
        logging.getLogger().addHandler(handler)
        run = InProcessRun(self._recipe, self._plan, attempt)
        asked_at: float | None = None
        while not run.poll():
            time.sleep(0.1)
            progress.update()
            if self._interrupts and asked_at is None:
                asked_at = time.monotonic()
                run.drain()
            if self._interrupts > 1 or (asked_at and time.monotonic() - asked_at > self._recipe.limits.drain_s):
                break
        logging.getLogger().removeHandler(handler)
        failure = DoneRecords(attempt).first_failure()
        return failure.code if failure else INTERRUPTED if asked_at else 0

    @contextmanager
    def _interrupts_counted(self) -> Iterator[None]:
        def count(*_: Any) -> None:
            self._interrupts += 1

        before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _feed(self, attempt: Attempt) -> Iterator[None]:
        """The tracker runs beside the attempt, in a process of its own: its failures are never the run's."""
        arguments = [sys.executable, "-m", "hpcrl.tracking.feed", str(self._run.path), "--parent", str(os.getpid())]
        if self._tracking_uri:
            arguments += ["--tracking-uri", self._tracking_uri]
        with open(attempt.log("tracker"), "ab") as output:
            feed = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            yield
        finally:
            feed.terminate()
            try:
                feed.wait(FEED_GRACE_S)
            except subprocess.TimeoutExpired:
                feed.kill()
                feed.wait()


def _summary(failure: DoneRecord | None, attempt: Attempt, code: int) -> str:
    if failure is not None:
        log = attempt.log(failure.process)
        last = tail(log)
        return f"{failure.process} on {failure.host} failed with code {failure.code}: {failure.error}\nread {log}\n" + (
            f"its last lines:\n{last}" if last not in failure.error else ""
        )
    if code == INTERRUPTED:
        return f"stopped and saved; go on with: hpcrl run --resume {attempt.run.path}"
    if code:
        log = attempt.log("ignitor.0")
        return f"an ignitor ended with code {code}; read {log}; its last lines:\n{tail(log)}"
    return f"done; see {attempt.run.path / 'report.html'}"
