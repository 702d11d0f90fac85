"""The joiner: ``python -m hpcrl.supervise.joiner RUN COMPONENT`` on the batch host of a job that joins a run.

It answers the main job's call, starts its component's step for the attempt that takes it, and waits for the next attempt. When
Slurm wants its nodes, all of the run saves; this job then goes back into the queue, while the main one keeps its own and waits.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

from hpcrl.config.codec import recipe_from_run
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.jobs import is_cancelled
from hpcrl.launch.joined import is_dismissed
from hpcrl.plan.plan import Plan
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError, RoleFailed
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import back_off
from hpcrl.supervise.drain import DrainTimer, ask_to_drain, drain_of
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job, SlurmCallFailed, hostnames, kill_wait
from hpcrl.supervise.join import Call, Ready, answer, call_of, taken
from hpcrl.supervise.life import shorten_drain
from hpcrl.supervise.requeue import back_into_queue
from hpcrl.supervise.signals import FROM_OUTSIDE, STOP
from hpcrl.supervise.starting import workers_of
from hpcrl.supervise.steps import Steps
from hpcrl.supervise.verdict import keeps_job, missed_signal
from hpcrl.tracking.journal import Journal

log = logging.getLogger(__name__)

# So long it keeps its nodes for a main job that does not run.
IDLE_S = 600.0
ASK_S = 30.0
LOOK_S = 5.0
# Services and the data plane end after the workers, and what an ignitor grants them all is less.
END_S = 40.0


class Joiner:
    """One life of a job that joins a run.

    Raises:
        CheckFailed: the run directory is not one that a job can join.
        KeyError: this is no job.
    """

    def __init__(self, path: Path, component: str, heard: Heard) -> None:
        self._run = RunDirectory.open(path)
        self._recipe = recipe_from_run(self._run)
        files = JobFiles.read(self._run.path)
        self._layout, self._site, self._facts = files.layout, files.site, files.facts
        self._job = Job.from_environment(os.environ, 1)
        self._name, self._heard = component, heard
        self._nodes: tuple[str, ...] = ()
        self._served = 0
        self._asked_at, self._main_runs = time.monotonic(), True

    def run(self) -> None:
        """Join attempt after attempt until the run has ended or this job is to go."""
        self._nodes = hostnames(*self._job.node_lists)
        wait = kill_wait()
        missed = missed_signal(self._job.look(), self._facts.signal_s, time.time())
        if missed is not None:
            self._heard.tell(missed)
        self._end_what_a_former_life_left()
        while (attempt := self._next()) is not None:
            self._serve(attempt, wait)
            if self._heard.ever or not keeps_job(self._job.look(), 0.0, time.time()):
                break
        if self._is_over():
            log.info("the run has ended")
            return
        if self._heard.ever or not keeps_job(self._job.look(), 0.0, time.time()):
            after = back_into_queue(self._job, self._is_over)
            log.info("this job's return to the queue: %s; the main job submits it again if need be", after)

    def _is_over(self) -> bool:
        return is_cancelled(self._run) or is_dismissed(self._run)

    def _end_what_a_former_life_left(self) -> None:
        """An attempt that counts on processes which ended with this job's former life is to save and begin anew."""
        for attempt in self._run.attempts()[-1:]:
            held = taken(attempt).get(self._name)
            if held is not None and not held.is_life(self._job.id, self._job.restarts) and not self._is_over():
                reason = f"the job of component {self._name} began again"
                ask_to_drain(attempt, reason, self._recipe.limits.drain_s, replace=False)

    def _next(self) -> Attempt | None:
        """The attempt that takes this job; None if it is to go."""
        answered = Call("", "")
        deadline, pauses = time.monotonic() + IDLE_S, back_off(0.05, 0.5)
        while time.monotonic() < deadline:
            if self._heard.ever or self._is_over():
                return None
            call = call_of(self._run)
            if call is not None and call != answered:
                answer(self._run, self._name, Ready(call.id, self._job.id, self._job.restarts, self._nodes))
                answered, pauses = call, back_off(0.05, 0.5)
                log.info("ready for main job %s", call.job)
            attempt = next(iter(self._run.attempts()[-1:]), None)
            held = taken(attempt).get(self._name) if attempt is not None else None
            if held is None or held.call != answered.id:
                if answered.job and self._runs(answered.job):
                    # The main job waits for others.
                    deadline = time.monotonic() + IDLE_S
            elif attempt is not None and attempt.number > self._served and held.is_life(self._job.id, self._job.restarts):
                return attempt
            time.sleep(next(pauses))
        log.info("no attempt took this job for %.0f s", IDLE_S)
        return None

    def _serve(self, attempt: Attempt, wait: float) -> None:
        """One attempt's step, from its start until nothing of it is left."""
        self._served = attempt.number
        nodes, start_s = {self._name: self._nodes}, self._recipe.limits.start_s / 3
        steps = Steps(attempt, self._layout, self._site, self._facts, nodes, start_s=start_s)
        journal = Journal(attempt.journal / f"joiner-{self._name}.jsonl")
        journal.write("job", job=self._job.id, restarts=self._job.restarts, component=self._name)
        call, pauses = taken(attempt)[self._name].call, back_off(0.05, 0.5)
        try:
            while drain_of(attempt) is None:
                steps.tend(lambda step: journal.write("launch", component=self._name, nodes=list(step.nodes), tries=step.tries))
                if steps.lost() and self._is_done(attempt):
                    break
                reason = self._reason_to_end(call, steps)
                if reason is not None:
                    log.info("asking all of the run to save and end: %s", reason)
                    journal.write("drain", reason=reason)
                    ask_to_drain(attempt, reason, self._recipe.limits.drain_s, replace=False)
                time.sleep(next(pauses))
            self._see_it_end(attempt, steps, wait)
        except RoleFailed as failed:
            record = DoneRecord(process=f"step.{self._name}", status="failed", code=failed.code, error=str(failed))
            write_done(attempt, record)
        finally:
            steps.end()
            journal.close()
        log.info("attempt %d has ended here", attempt.number)

    def _is_done(self, attempt: Attempt) -> bool:
        """Whether every process that ends by itself has ended; services end after them, and so does their step."""
        path = attempt.path / "plan.json"
        return path.exists() and (
            workers_of(self._recipe, Plan.from_json(path.read_text())) <= DoneRecords(attempt).read().keys()
        )

    def _reason_to_end(self, call: str, steps: Steps) -> str | None:
        signalled = self._heard.take()
        if signalled is not None:
            return f"job {self._job.id} of component {self._name}: {signalled}"
        if steps.lost():
            return f"the step of component {self._name} ended"
        now = call_of(self._run)
        if now is None or now.id != call:
            return "the main job began again"
        return None if self._runs(now.job) else f"main job {now.job} does not run any more"

    def _see_it_end(self, attempt: Attempt, steps: Steps, wait: float) -> None:
        """Until the step has ended, as long as the request to save and end allows."""
        held, limit = drain_of(attempt), self._recipe.limits.drain_s
        if held is not None and self._heard.ever:
            shorten_drain(attempt, self._job.look(LOOK_S), limit, wait)
        timer, over_at = DrainTimer(attempt), None
        while not steps.ended():
            if over_at is None and timer.is_over():
                over_at = time.monotonic()
            if over_at is not None and time.monotonic() - over_at > END_S:
                log.error("the step did not end in time")
                return
            time.sleep(0.1)

    def _runs(self, job: str) -> bool:
        """Whether the main job runs, asked only now and then; what the controller does not say is taken for a yes."""
        if time.monotonic() - self._asked_at > ASK_S:
            self._asked_at = time.monotonic()
            self._main_runs = keeps_job(Job(job, 0, ()).look(LOOK_S), 0.0, time.time())
        return self._main_runs


def main(argv: list[str]) -> int:
    """Join the run of the directory ``argv[0]`` as component ``argv[1]``; the exit code is the job's."""
    heard = Heard()
    heard.hear((*FROM_OUTSIDE, STOP))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s joiner: %(message)s", stream=sys.stderr)
    try:
        Joiner(Path(argv[0]), argv[1], heard).run()
    except (HpcrlError, SlurmCallFailed, json.JSONDecodeError, OSError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
