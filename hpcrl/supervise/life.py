"""One attempt inside a Slurm job, from its steps' start to its verdict."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from hpcrl.launch.layout import Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import Site
from hpcrl.plan.plan import Plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import RoleFailed
from hpcrl.run.records import CAUSED_S, DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import back_off
from hpcrl.supervise.drain import Drain, ask_to_drain, drain_of
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job, JobState, SlurmCallFailed, hostnames
from hpcrl.supervise.join import Ready
from hpcrl.supervise.joined import JoinWatch
from hpcrl.supervise.starting import workers_of
from hpcrl.supervise.steps import Step, Steps
from hpcrl.supervise.verdict import Verdict, judge_attempt, seconds_left
from hpcrl.tracking.journal import Journal

log = logging.getLogger(__name__)

# One question to the controller, whatever the number of nodes.
NODE_POLL_S = 10.0
LOOK_S = 5.0
# What ignitors may take beyond the time to save: they kill what is late, then end services and the data plane.
LATE_S = 45.0


class Life:
    """An attempt's life.

    Args:
        nodes: names of the nodes to use of each component of the main job.
        joined: jobs that joined the attempt, by component.
        kill_wait: gives the time from Slurm's SIGTERM to its SIGKILL [s].

    Attributes:
        lost: nodes that Slurm took away.
    """

    def __init__(
        self,
        attempt: Attempt,
        recipe: Recipe,
        layout: Layout,
        site: Site,
        facts: JobFacts,
        job: Job,
        nodes: Mapping[str, Sequence[str]],
        *,
        joined: Mapping[str, Ready],
        heard: Heard,
        journal: Journal,
        kill_wait: Callable[[], float],
    ) -> None:
        self._attempt, self._recipe, self._layout, self._job = attempt, recipe, layout, job
        self._heard, self._journal, self._kill_wait = heard, journal, kill_wait
        self._nodes = frozenset(name for names in nodes.values() for name in names)
        # A third of it, so that a second try fits before the first ignitors give up.
        self.steps = Steps(attempt, layout, site, facts, nodes, start_s=recipe.limits.start_s / 3)
        slots = {component.name: layout.slots[component.name] for component in layout.joined}
        # Before the ignitors that are there give up.
        self._join = JoinWatch(attempt, joined, slots, start_s=recipe.limits.start_s * 2 / 3) if slots else None
        self.lost: set[str] = set()
        self._records = DoneRecords(attempt)
        self._workers: frozenset[str] | None = None
        self._plan: Plan | None = None
        self._drain: Drain | None = None
        self._failed_at: float | None = None
        self._released = False
        self._looked_at = time.monotonic()
        self._ends = math.inf

    def run(self) -> Verdict:
        """Until every worker has left a record, or every step has ended, or what was asked to end is long overdue.

        Services may then still be ending.
        """
        pauses = back_off(0.05, 0.5)
        try:
            while not self._is_over():
                self._hear()
                if self._drain is None:
                    self.steps.tend(self._say_step)
                    self._watch_over()
                time.sleep(next(pauses))
            self._wait_for_a_cause()
        except RoleFailed as failed:
            ask_to_drain(self._attempt, str(failed), LOOK_S)
            return Verdict("failed", failed.code, str(failed))
        drain = None if self._released else drain_of(self._attempt)
        return judge_attempt(list(self._records.read().values()), self._workers, drain)

    def _is_over(self) -> bool:
        self._read_plan()
        if time.monotonic() > self._ends:
            log.error(
                "the ignitors on %s were asked to end and did not; their steps are killed", ", ".join(sorted(self._nodes))
            )
            return True
        ended = self.steps.ended() and (self._drain is not None or bool(self.steps.lost()))
        return ended or (self._workers is not None and self._workers <= self._records.read().keys())

    def _wait_for_a_cause(self) -> None:
        """Slurm's signal reaches all processes at once, and all may have ended of it before the first ignitor can speak."""
        if self._records.first_failure() is None or self._released:
            return
        until = (self._failed_at or time.monotonic()) + CAUSED_S
        while self._drain is None and time.monotonic() < until:
            self._hear()
            time.sleep(0.05)

    def _read_plan(self) -> None:
        path = self._attempt.path / "plan.json"
        if self._plan is None and path.exists():
            self._plan = Plan.from_json(path.read_text())
            self._workers = workers_of(self._recipe, self._plan)

    def _hear(self) -> None:
        """Requests to end: from signals to this process, or from an ignitor that was signalled."""
        reason = self._heard.take()
        if reason is not None and drain_of(self._attempt) is None:
            ask_to_drain(self._attempt, reason, self._recipe.limits.drain_s)
        request = drain_of(self._attempt)
        if request is None or self._drain is not None:
            return
        self._drain = request
        seconds = self._bound()
        self._ends = time.monotonic() + seconds + LATE_S
        log.info("saving and ending within %.0f s: %s", seconds, request.reason)
        self._journal.write("drain", reason=request.reason, seconds=seconds)

    def _bound(self) -> float:
        """Shorten the request to what Slurm leaves; what it does not say leaves it as it is."""
        return shorten_drain(self._attempt, self._job.look(LOOK_S), self._recipe.limits.drain_s, self._kill_wait())

    def _watch_over(self) -> None:
        """Failures that ignitors alone cannot answer: nodes that are gone, steps that ended, roles that were stopped."""
        records = self._records.read()
        failure = self._records.first_failure()
        now = time.monotonic()
        if failure is not None and self._failed_at is None:
            self._failed_at = now
        ended = bool(self.steps.lost())
        if self._layout.no_kill and (ended or failure is not None or now - self._looked_at > NODE_POLL_S):
            self._look_for_lost_nodes()
        if self.lost or self._is_left(ask=failure is not None):
            return
        # Slurm's signal reaches all processes at once, and those that die of it take others with them before the first
        # ignitor can speak.
        if failure is not None and self._failed_at is not None and now - self._failed_at > CAUSED_S:
            # Ignitors with processes know by themselves; this is for those that still wait for others.
            self._released = True
            self._ask(f"{failure.process} failed")
        stopped = sorted((self._workers or frozenset()) & {n for n, r in records.items() if r.status == "stopped"})
        if stopped and failure is None:
            self._ask(f"{stopped[0]} was stopped from outside")
        elif ended and failure is None:
            self._ask(f"the step of component {self.steps.lost()[0].component.name} ended")

    def _is_left(self, *, ask: bool) -> bool:
        """Whether a component that joined is lost; the others then save, and nobody waits for its processes."""
        lost = self._join.lost(ask=ask) if self._join is not None else []
        for item in lost:
            self._ask(item.reason)
            self._journal.write("left", component=item.component, reason=item.reason)
            for process in self._plan.processes if self._plan else ():
                component = (self._layout.mapping or {}).get(process.group)
                if component == item.component and process.name not in self._records.read():
                    write_done(self._attempt, DoneRecord(process=process.name, status="stopped", error=item.reason))
        return bool(lost)

    def _ask(self, reason: str) -> None:
        ask_to_drain(self._attempt, reason, self._recipe.limits.drain_s, replace=False)

    def _look_for_lost_nodes(self) -> None:
        self._looked_at = time.monotonic()
        state = self._job.look(LOOK_S)
        if state is None:
            return
        try:
            lost = self._nodes - set(hostnames(state.nodes))
        except SlurmCallFailed as error:
            log.warning("%s", error)
            return
        if not lost:
            return
        self.lost |= lost
        names = ", ".join(sorted(lost))
        self._ask(f"node {names} is down")
        self._journal.write("lost", nodes=sorted(lost))
        for process in self._plan.processes if self._plan else ():
            if process.node in lost and process.name not in self._records.read():
                what = f"node {process.node} is down"
                write_done(self._attempt, DoneRecord(process=process.name, status="failed", code=1, error=what))

    def _say_step(self, step: Step) -> None:
        self._journal.write(
            "launch", component=step.component.name, nodes=list(step.nodes), first=step.slots.start, tries=step.tries
        )


def shorten_drain(attempt: Attempt, state: JobState | None, limit: float, kill_wait: float) -> float:
    """Shorten an attempt's request to save and end to what Slurm leaves of a job; returns what is left of it [s].

    Args:
        state: of the job; None = not known, which leaves the request as it is.
        limit: the recipe's own [s].
        kill_wait: from Slurm's SIGTERM to its SIGKILL [s].
    """
    seconds = seconds_left(state, limit, kill_wait=kill_wait, now=time.time())
    held = drain_of(attempt)
    if held is not None and held.seconds <= seconds:
        return held.seconds
    ask_to_drain(attempt, "", seconds)
    return seconds
