"""The supervisor: ``python -m hpcrl.supervise.supervisor RUN`` on the batch host of a Slurm job, from its start to its end.

It waits for the jobs that join the run, if there are any, makes an attempt, starts the ignitors' steps, passes on Slurm's
signals as requests to save, and when the attempt has ended decides from the done-records what follows: the end, another attempt
in this job, the job's return to the queue, or a successor.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.config.codec import recipe_from_run
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.jobs import is_cancelled
from hpcrl.launch.joined import dismiss_joined
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.tracker import AskToEnd, tracker
from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import DeadlineExceeded, HpcrlError, Stopped
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job, SlurmCallFailed, hostnames, kill_wait, submit_successor
from hpcrl.supervise.join import Ready, take
from hpcrl.supervise.joined import Joining
from hpcrl.supervise.life import Life
from hpcrl.supervise.progress import begin, committed_steps
from hpcrl.supervise.requeue import back_into_queue
from hpcrl.supervise.signals import FROM_OUTSIDE, STOP
from hpcrl.supervise.verdict import IDLE_ATTEMPTS, NO_PROGRESS, Verdict, is_stuck, keeps_job, missed_signal
from hpcrl.tracking.journal import Journal

log = logging.getLogger(__name__)

# Names of the nodes of each component of the main job.
Nodes = Mapping[str, tuple[str, ...]]

# Services end after the workers; an ignitor grants them as much.
END_S = 40.0
# When the job goes back into the queue, nothing that they hold counts any more.
END_TO_REQUEUE_S = 5.0
# After these, the run goes on in a later life.
GOES_ON = ("requeue", "leave", "successor")


class _Left(Exception):
    """No attempt was begun, and the run does not go on in this job."""

    def __init__(self, code: int, what: str) -> None:
        self.code, self.what = code, what
        super().__init__(what)


class Supervisor:
    """One job of a run.

    Raises:
        CheckFailed: the run directory is not one that a job can run.
        KeyError: this is no job.
    """

    def __init__(self, path: Path, heard: Heard) -> None:
        self._run = RunDirectory.open(path)
        self._recipe = recipe_from_run(self._run)
        files = JobFiles.read(self._run.path)
        self._layout, self._site, self._facts = files.layout, files.site, files.facts
        self._job = Job.from_environment(os.environ, len(self._layout.main))
        self._heard = heard

    def run(self) -> int:
        """Attempts until the run has ended or leaves this job; returns the exit code of the job."""
        what = "failed"
        try:
            code, what = self._attempts()
        except _Left as left:
            code, what = left.code, left.what
        finally:
            if self._layout.joined and what not in GOES_ON:
                self._dismiss()
        return code

    def _attempts(self) -> tuple[int, str]:
        if self._is_stuck():
            return NO_PROGRESS, "stuck"
        nodes = {
            component.name: hostnames(names) for component, names in zip(self._layout.main, self._job.node_lists, strict=True)
        }
        joined = self._join()
        attempt = self._begin(nodes, joined)
        with (
            tracker(self._run, attempt, self._facts.tracking_uri) as end_tracker,
            # The controller may take its time, and the answer matters only when the job is to end.
            ThreadPoolExecutor(1) as asking,
        ):
            asking.submit(self._ask_what_was_missed)
            wait = asking.submit(kill_wait).result
            while True:
                journal = Journal(attempt.journal / "supervisor.jsonl")
                life = self._live(attempt, nodes, joined, journal, wait)
                verdict = life.run()
                log.info("attempt %d: %s, %s", attempt.number, verdict.what, verdict.reason)
                nodes = {name: tuple(node for node in held if node not in life.lost) for name, held in nodes.items()}
                if not self._stays(verdict, life, nodes):
                    return self._conclude(verdict, life, journal, end_tracker)
                self._end(life, END_TO_REQUEUE_S if life.lost else END_S)
                journal.write("verdict", what="relaunch", reason=verdict.reason)
                if self._is_stuck():
                    return NO_PROGRESS, "stuck"
                joined = self._join()
                attempt = self._begin(nodes, joined)

    def _ask_what_was_missed(self) -> None:
        """A signal that came before this process listened was ignored; the controller still knows what it was for."""
        reason = missed_signal(self._job.look(), self._facts.signal_s, time.time())
        if reason is not None:
            self._heard.tell(reason)

    def _join(self) -> dict[str, Ready]:
        """Wait until every job that joins the run is there."""
        if not self._layout.joined:
            return {}
        state = self._job.look()
        seconds = self._layout.minutes * 60.0
        if state is not None and state.end is not None:
            seconds = max(1.0, state.end - time.time() - self._facts.signal_s)
        try:
            return Joining(self._run, self._layout, self._facts, self._job, self._heard).wait(seconds)
        except (Stopped, DeadlineExceeded) as error:
            log.info("%s", error)
            raise _Left(*self._go_on()) from error

    def _begin(self, nodes: Nodes, joined: Mapping[str, Ready]) -> Attempt:
        attempt = self._run.new_attempt()
        begin(attempt, self._job.id)
        held = {name: list(names) for name, names in nodes.items()} | {name: list(item.nodes) for name, item in joined.items()}
        write_json(attempt.path / "slurm.json", {**asdict(self._job), "nodes": held, "t": time.time()})
        if joined:
            take(attempt, joined)
        log.info("attempt %d in job %s, restart %d", attempt.number, self._job.id, self._job.restarts)
        for name, item in joined.items():
            log.info("job %s, restart %d, joins it as %s on %s", item.job, item.restarts, name, ",".join(item.nodes))
        return attempt

    def _live(
        self,
        attempt: Attempt,
        nodes: Nodes,
        joined: Mapping[str, Ready],
        journal: Journal,
        wait: Callable[[], float],
    ) -> Life:
        journal.write("job", job=self._job.id, restarts=self._job.restarts)
        return Life(
            attempt,
            self._recipe,
            self._layout,
            self._site,
            self._facts,
            self._job,
            {component.name: nodes[component.name][: component.used] for component in self._layout.main},
            joined=joined,
            heard=self._heard,
            journal=journal,
            kill_wait=wait,
        )

    def _stays(self, verdict: Verdict, life: Life, nodes: Nodes) -> bool:
        """Whether the run goes on with another attempt in this job: what it lost can be replaced, or comes back."""
        if verdict.what != "again" or self._heard.ever or is_cancelled(self._run):
            return False
        if any(len(nodes[component.name]) < component.used for component in self._layout.main):
            return False
        if life.lost:
            return True
        return (verdict.stays or bool(self._layout.joined)) and keeps_job(self._job.look(), self._facts.signal_s, time.time())

    def _dismiss(self) -> None:
        try:
            dismiss_joined(self._run, Slurm())
        except HpcrlError as error:
            log.warning("jobs that join the run may still wait in the queue, and end when they start: %s", error)

    def _conclude(self, verdict: Verdict, life: Life, journal: Journal, end_tracker: AskToEnd) -> tuple[int, str]:
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
            # Draws with what takes long to import, and is for the end.
            from hpcrl.tracking.report import write_report

            try:
                write_report(self._run)
            except OSError as error:
                # The run has ended as it has; a full disk must not hide how.
                log.warning("the report could not be written: %s", error)
        return code, what

    def _end(self, life: Life, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not life.steps.ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        life.steps.end()

    def _go_on(self) -> tuple[int, str]:
        """Have the job start again; its exit code now, and what was done."""
        if self._is_stuck():
            return NO_PROGRESS, "stuck"
        after = back_into_queue(
            self._job,
            lambda: is_cancelled(self._run),
            lambda: submit_successor(self._run, self._facts, self._job.id),
        )
        if after is None:
            log.error("Slurm did not take the job back; go on with: hpcrl resume %s", self._run.path)
            return 1, "nothing"
        return 0, after

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
