"""A run on this machine, as a person at a terminal sees it: its attempts, progress, Ctrl-C, tracking, the report."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.launch.local import LocalRun
from hpcrl.launch.tracker import tracker
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, DoneRecords
from hpcrl.run.tail import tail
from hpcrl.supervise.claim import PortClaims
from hpcrl.supervise.gather import look_at_ports
from hpcrl.supervise.verdict import IDLE_ATTEMPTS, is_stuck
from hpcrl.tracking.progress import Progress
from hpcrl.tracking.report import write_report

INTERRUPTED = 130


class Session:
    """Starts an attempt, shows it, and ends it well whatever happens; another one follows where a process was killed.

    Args:
        plan: of this machine; says how many slots there are.
        tracking_uri: MLflow server, or None for a database in the run directory.
    """

    def __init__(
        self, recipe: Recipe, run: RunDirectory, plan: Plan, *, in_process: bool = False, tracking_uri: str | None = None
    ) -> None:
        self._recipe, self._run, self._plan = recipe, run, plan
        self._in_process, self._tracking_uri = in_process, tracking_uri
        self._ignitors = LocalRun(len(plan.allocation.slots), drain_s=recipe.limits.drain_s)
        self._interrupts = 0
        self._hurried = False

    def run(self) -> int:
        """Until the end; returns the exit code: 0, the failed role's, or 130 after Ctrl-C."""
        began: list[int] = []
        attempt = self._run.new_attempt()
        # All attempts have the same tracker and one report: none waits for what only tells of the one before.
        with self._interrupts_counted(), tracker(self._run, attempt, self._tracking_uri):
            try:
                while True:
                    began.append(read_cursor(self._run.state).step)
                    code, failure = self._live(attempt)
                    if failure is None or not failure.killed_by or self._interrupts or self._is_stuck(began, failure):
                        break
                    attempt = self._run.new_attempt()
            finally:
                self._ignitors.kill()
            try:
                write_report(self._run)
            except OSError as error:
                # The run has ended as it has; a full disk must not hide how.
                print(f"the report could not be written: {error}", file=sys.stderr)
        return code

    def _is_stuck(self, began: list[int], failure: DoneRecord) -> bool:
        killed, step = f"{failure.process} was killed by {failure.killed_by}", read_cursor(self._run.state).step
        stuck = is_stuck(began, step)
        if stuck:
            what = f"{IDLE_ATTEMPTS} attempts in a row saved nothing beyond step {step}, so the run stops"
        else:
            what = f"the run goes on from step {step} in attempt {self._run.latest().number + 1}"
        print(f"{killed}; {what}", file=sys.stderr, flush=True)
        return stuck

    def _live(self, attempt: Attempt) -> tuple[int, DoneRecord | None]:
        """One attempt; its exit code and first failure."""
        progress = Progress(self._recipe, attempt)
        code = self._run_in_process(attempt, progress) if self._in_process else self._run_processes(attempt, progress)
        failure = None if self._hurried else DoneRecords(attempt).first_failure()
        progress.close(_summary(failure, attempt, code, saved=not self._hurried))
        return code, failure

    def _run_processes(self, attempt: Attempt, progress: Progress) -> int:
        run, asked_at = self._ignitors, None
        run.begin(attempt)
        while not run.wait(0.5):
            progress.update()
            if self._interrupts and asked_at is None:
                asked_at = self._asked()
                run.drain()
            if self._interrupts > 1 or (asked_at and time.monotonic() - asked_at > run.finish_s):
                run.kill()
        # What was killed at a person's word did not fail.
        self._hurried = self._interrupts > 1 and run.code() != 0
        return INTERRUPTED if self._hurried else run.code() or (INTERRUPTED if asked_at else 0)

    def _asked(self) -> float:
        limit = self._recipe.limits.drain_s
        print(f"stopping: saving what was trained, at most {limit:g} s; Ctrl-C again ends at once", file=sys.stderr, flush=True)
        return time.monotonic()

    def _run_in_process(self, attempt: Attempt, progress: Progress) -> int:
        from hpcrl.launch.in_process import InProcessRun

        handler = logging.FileHandler(attempt.log("in_process"))
        logging.getLogger().addHandler(handler)
        asked_at: float | None = None
        with closing(PortClaims(self._run.run_id)) as claims:
            run = InProcessRun(self._recipe, self._with_free_ports(claims), attempt)
            while not run.poll():
                time.sleep(0.1)
                progress.update()
                if self._interrupts and asked_at is None:
                    asked_at = self._asked()
                    run.drain()
                if self._interrupts > 1 or (asked_at and time.monotonic() - asked_at > self._recipe.limits.drain_s):
                    self._hurried = True
                    break
        logging.getLogger().removeHandler(handler)
        failure = None if self._hurried else DoneRecords(attempt).first_failure()
        return failure.code if failure else INTERRUPTED if asked_at else 0

    def _with_free_ports(self, claims: PortClaims) -> Plan:
        """The plan once more: where it was made first, for the checks, nobody had looked what is taken."""
        allocation = look_at_ports(self._plan.allocation, self._run.run_id, claims)
        plan = make_plan(self._recipe, allocation, self._run.run_id)
        claims.keep(plan.ports)
        return plan

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


def _summary(failure: DoneRecord | None, attempt: Attempt, code: int, *, saved: bool) -> str:
    if failure is not None:
        log = attempt.log(failure.process)
        last = tail(log)
        told = f"{failure.process} on {failure.host} failed with code {failure.code}: {failure.error.rstrip()}"
        read = "" if str(log) in failure.error else f"\nread {log}"
        return told + read + ("" if last in failure.error else f"\nits last lines:\n{last}")
    if code == INTERRUPTED:
        what = "stopped and saved" if saved else "ended at once; steps since the last save will be trained again"
        return f"{what}; go on with: hpcrl run --resume {attempt.run.path}"
    if code:
        log = attempt.log("ignitor.0")
        return f"an ignitor ended with code {code}; read {log}; its last lines:\n{tail(log)}"
    return f"done; see {attempt.run.path / 'report.html'}"
