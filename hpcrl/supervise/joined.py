"""The main job's side of the jobs that join it: wait until all are there, submit those that are not, notice one that goes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcrl.launch.jobs import joined_jobs, newest
from hpcrl.launch.joined import expect_joined, queue_joined
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.queue_once import NotKnown
from hpcrl.launch.render import JobFacts
from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.slurm_text import Job as Queued
from hpcrl.launch.standing import joined_in_words
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import back_off, wait_for
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job
from hpcrl.supervise.join import Ready, answers, make_call

log = logging.getLogger(__name__)

# One question to the controller for all components.
ASK_S = 10.0
SAY_S = 60.0
# So often one component's job may end before it was ready.
RESUBMITS = 3


class Joining:
    """Waits for the jobs that join a run."""

    def __init__(self, run: RunDirectory, layout: Layout, facts: JobFacts, job: Job, heard: Heard) -> None:
        self._run, self._facts, self._job, self._heard = run, facts, job, heard
        self._components = {component.name: component for component in layout.joined}
        self._submitted = dict.fromkeys(self._components, 0)
        self._asked_at = self._said_at = 0.0

    def wait(self, seconds: float) -> dict[str, Ready]:
        """Call, and wait until every component's job has answered.

        Raises:
            Stopped: this job heard a signal.
            DeadlineExceeded: one is not there in time.
            RoleFailed: one ended again and again before it was ready.
        """
        expect_joined(self._run)
        call = make_call(self._run, self._job.id)
        now = time.monotonic()
        # One that is there needs a moment to answer.
        self._asked_at, self._said_at = now - ASK_S / 2, now - SAY_S

        def poll() -> dict[str, Ready] | None:
            reason = self._heard.take()
            if reason is not None:
                raise Stopped(reason)
            found = answers(self._run, call, self._components.keys())
            if found.keys() == self._components.keys():
                return found
            if time.monotonic() - self._asked_at > ASK_S:
                self._asked_at = time.monotonic()
                self._tend(self._components.keys() - found.keys())
            return None

        names = ", ".join(self._components)
        return wait_for(f"the jobs of {names} to join the run", poll, seconds=seconds, pauses=back_off(0.05, 0.5))

    def _tend(self, lacking: Collection[str]) -> None:
        try:
            queued = joined_jobs(self._run, Slurm().queue(users=[os.getuid()]))
            words = []
            for name in sorted(lacking):
                job = newest(queued.get(name, ()))
                if job is None or not job.is_active:
                    self._submit(self._components[name], job)
                else:
                    words.append(joined_in_words(name, job))
        except (SlurmMissing, SlurmDown, SlurmRefused, NotKnown) as error:
            log.warning("%s", error)
            return
        if words and time.monotonic() - self._said_at > SAY_S:
            self._said_at = time.monotonic()
            log.info("waiting for what joins the run; %s", "; ".join(words))

    def _submit(self, component: Component, before: Queued | None) -> None:
        if self._submitted[component.name] >= RESUBMITS:
            log_file = self._run.path / "slurm" / f"{before.id if before else '*'}.log"
            raise RoleFailed(
                f"the job of component {component.name} ended {RESUBMITS} times before it was ready to join",
                read=log_file,
                do=f"go on with: hpcrl resume {self._run.path}",
            )
        job = queue_joined(Slurm(), self._run, component, self._facts, "again", leader=int(self._job.id))
        self._submitted[component.name] += 1
        log.info("job %d is submitted for component %s, which had none", job, component.name)


@dataclass(frozen=True)
class Lost:
    """A component that is no more, or never came, and why."""

    component: str
    reason: str


class JoinWatch:
    """Watches the jobs that joined one attempt.

    Args:
        slots: of each component that joined, in the order of the run's slots.
        start_s: so long after the attempt's start an ignitor of each must have reported [s].
    """

    def __init__(self, attempt: Attempt, joined: Mapping[str, Ready], slots: Mapping[str, range], *, start_s: float) -> None:
        self._joined, self._slots = joined, dict(slots)
        self._rendezvous = Rendezvous(attempt.path / "rendezvous", attempt.run.run_id)
        self._start_s, self._began = start_s, time.monotonic()
        self._asked_at = time.monotonic()

    def lost(self, *, ask: bool) -> list[Lost]:
        """Components that are lost; cheap to call often.

        Args:
            ask: ask Slurm now, since something is wrong.
        """
        found = [*self._late()]
        if ask or time.monotonic() - self._asked_at > ASK_S:
            self._asked_at = time.monotonic()
            found += self._gone()
        return found

    def _late(self) -> list[Lost]:
        if not self._slots:
            return []
        reported = set(map(int, self._rendezvous.published("slots")))
        self._slots = {name: slots for name, slots in self._slots.items() if reported.isdisjoint(slots)}
        if time.monotonic() - self._began < self._start_s:
            return []
        return [Lost(name, f"component {name} did not join within {self._start_s:g} s") for name in self._slots]

    def _gone(self) -> list[Lost]:
        jobs = {int(ready.job): name for name, ready in self._joined.items()}
        try:
            running = {job.id for job in Slurm().queue(jobs=jobs) if job.state not in _GONE and job.is_active}
        except (SlurmMissing, SlurmDown, SlurmRefused) as error:
            # A controller that is down is no reason to end a run.
            log.warning("%s", error)
            return []
        return [Lost(name, f"job {job} of component {name} is gone") for job, name in jobs.items() if job not in running]


# Its nodes are not the run's any more.
_GONE = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
