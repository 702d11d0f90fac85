"""The supervisor: ``python -m hpcrl.supervise.supervisor RUN`` on the batch host of a Slurm job, from its start to its end.

It makes an attempt, starts the ignitors' steps, passes on Slurm's signals as requests to save, and when the attempt has ended
decides from the done-records what follows: the end, another attempt in this job, the job's return to the queue, or a successor.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.config.codec import recipe_from_run
from hpcrl.launch.jobs import is_cancelled
from hpcrl.launch.layout import Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import Site
from hpcrl.launch.slurm import Slurm, SlurmRefused
from hpcrl.launch.tracker import AskToEnd, tracker
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job, SlurmCallFailed, hostnames, kill_wait, submit_successor
from hpcrl.supervise.life import Life
from hpcrl.supervise.progress import begin, committed_steps
from hpcrl.supervise.signals import FROM_OUTSIDE, STOP
from hpcrl.supervise.verdict import IDLE_ATTEMPTS, NO_PROGRESS, After, Verdict, after_drain, is_stuck
from hpcrl.tracking.journal import Journal
from hpcrl.tracking.report import write_report

log = logging.getLogger(__name__)

# Services end after the workers; an ignitor grants them as much.
END_S = 40.0
# When the job goes back into the queue, nothing that they hold counts any more.
END_TO_REQUEUE_S = 5.0
REQUEUE_S = 120.0
ASK_AGAIN_S = 2.0


class Supervisor:
    """One job of a run.

    Raises:
        CheckFailed: the run directory is not one that a job can run.
        KeyError: this is no job.
    """

    def __init__(self, path: Path, heard: Heard) -> None:
        self._run = RunDirectory.open(path)
        self._recipe = recipe_from_run(self._run)
        self._layout = Layout.from_json((path / "layout.json").read_text())
        self._site = Site.from_json((path / "site.json").read_text())
        self._facts = JobFacts.from_json((path / "job.json").read_text(), self._run.path)
        self._job = Job.from_environment(os.environ, len(self._layout.components))
        self._heard = heard

    def run(self) -> int:
        """Attempts until the run has ended or leaves this job; returns the exit code of the job."""
        if self._is_stuck():
            return NO_PROGRESS
        nodes = [hostnames(names) for names in self._job.node_lists]
        wait = kill_wait()
        attempt = self._begin(nodes)
        with tracker(self._run, attempt, self._facts.tracking_uri) as end_tracker:
            while True:
                journal = Journal(attempt.journal / "supervisor.jsonl")
                life = self._live(attempt, nodes, journal, wait)
                verdict = life.run()
                log.info("attempt %d: %s, %s", attempt.number, verdict.what, verdict.reason)
                left = [[name for name in names if name not in life.lost] for names in nodes]
                if verdict.what == "again" and life.lost and not self._heard.ever and self._suffice(left):
                    self._end(life, END_TO_REQUEUE_S)
                    journal.write("verdict", what="relaunch", reason=verdict.reason)
                    if self._is_stuck():
                        return NO_PROGRESS
                    nodes, attempt = [tuple(names) for names in left], self._begin(left)
                    continue
                return self._conclude(verdict, life, journal, end_tracker)

    def _begin(self, nodes: Sequence[Sequence[str]]) -> Attempt:
        attempt = self._run.new_attempt()
        begin(attempt, self._job.id)
        components = {component.name: list(names) for component, names in zip(self._layout.components, nodes, strict=True)}
        state = self._job.look()
        write_json(
            attempt.path / "slurm.json",
            {**asdict(self._job), "nodes": components, "end": state.end if state else None, "t": time.time()},
        )
        log.info("attempt %d in job %s, restart %d", attempt.number, self._job.id, self._job.restarts)
        return attempt

    def _live(self, attempt: Attempt, nodes: Sequence[Sequence[str]], journal: Journal, wait: float) -> Life:
        journal.write("job", job=self._job.id, restarts=self._job.restarts)
        used = [
            tuple(names[: component.nodes - component.spares])
            for component, names in zip(self._layout.components, nodes, strict=True)
        ]
        return Life(
            attempt,
            self._recipe,
            self._layout,
            self._site,
            self._facts,
            self._job,
            used,
            heard=self._heard,
            journal=journal,
            kill_wait=wait,
        )

    def _suffice(self, nodes: Sequence[Sequence[str]]) -> bool:
        return all(
            len(names) >= component.nodes - component.spares
            for component, names in zip(self._layout.components, nodes, strict=True)
        )

    def _conclude(self, verdict: Verdict, life: Life, journal: Journal, end_tracker: AskToEnd) -> int:
        if verdict.what == "again":
            end_tracker()
            self._end(life, END_TO_REQUEUE_S)
            code, what = self._go_on()
        else:
            self._end(life, END_S)
            code, what = verdict.code, verdict.what
        journal.write("verdict", what=what, reason=verdict.reason)
        log.info("%s: %s", what, verdict.reason)
        if verdict.what != "again":
            try:
                write_report(self._run)
            except OSError as error:
                # The run has ended as it has; a full disk must not hide how.
                log.warning("the report could not be written: %s", error)
        return code

    def _end(self, life: Life, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not life.steps.ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        life.steps.end()

    def _go_on(self) -> tuple[int, str]:
        """Have the job start again; its exit code now, and what was done."""
        if self._is_stuck():
            return NO_PROGRESS, "stuck"
        deadline = time.monotonic() + REQUEUE_S
        while True:
            try:
                after = after_drain(self._job.look(), cancelled=is_cancelled(self._run))
                if after == "requeue":
                    after = self._requeue()
                if after == "successor":
                    successor = submit_successor(self._run, self._facts, self._job.id)
                    log.info("job %d goes on with the run once this one has ended", successor)
                if after is not None:
                    return 0, after
            except HpcrlError as error:
                log.warning("%s", error)
            if time.monotonic() > deadline:
                log.error("Slurm did not take the job back for %.0f s; go on with: hpcrl resume %s", REQUEUE_S, self._run.path)
                return 1, "nothing"
            time.sleep(ASK_AGAIN_S)

    def _requeue(self) -> After:
        try:
            Slurm().requeue(int(self._job.id))
        except SlurmRefused as refused:
            log.warning("%s; a successor is submitted", refused)
            return "successor"
        return "requeue"

    def _is_stuck(self) -> bool:
        step = read_cursor(self._run.state).step
        stuck = is_stuck(committed_steps(self._run), step)
        if stuck:
            log.error(
                "%d attempts in a row saved nothing beyond step %d, so the run stops; read the logs of %s, and go on with: "
                "hpcrl resume %s",
                IDLE_ATTEMPTS,
                step,
                self._run.path / "latest",
                self._run.path,
            )
        return stuck


def main(argv: list[str]) -> int:
    """Supervise the run of the directory ``argv[0]``; the exit code is the job's."""
    heard = Heard()
    heard.hear((*FROM_OUTSIDE, STOP))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s supervisor: %(message)s", stream=sys.stderr)
    try:
        return Supervisor(Path(argv[0]), heard).run()
    except (HpcrlError, SlurmCallFailed, json.JSONDecodeError, OSError) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
