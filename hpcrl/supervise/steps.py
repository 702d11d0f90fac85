"""The Slurm steps of an attempt in one job: an ``srun`` for each component, started with a deadline and again if need be."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import Site
from hpcrl.launch.step import srun_command
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import RoleFailed
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.tail import tail

log = logging.getLogger(__name__)

TRIES = 3
RETRY_S = 2.0
# An srun that is asked to end ends its tasks first.
SRUN_GRACE_S = 5.0


@dataclass
class Step:
    """One component's ignitors.

    Attributes:
        slots: of its ignitors.
    """

    component: Component
    nodes: tuple[str, ...]
    slots: range
    srun: subprocess.Popen[bytes] | None = None
    tries: int = 0
    started: float = 0.0
    up: bool = False
    not_before: float = field(default=0.0)

    def ended(self) -> bool:
        """Whether its srun has ended, or never began."""
        return self.srun is None or self.srun.poll() is not None


class Steps:
    """Steps of one attempt.

    Args:
        nodes: names of the nodes to use of each component that this job is to start.
        start_s: from the start of an ``srun`` until an ignitor of its step has reported, at most [s].
    """

    def __init__(
        self,
        attempt: Attempt,
        layout: Layout,
        site: Site,
        job: JobFacts,
        nodes: Mapping[str, Sequence[str]],
        *,
        start_s: float,
    ) -> None:
        self._attempt, self._layout, self._site, self._job, self._start_s = attempt, layout, site, job, start_s
        self._rendezvous = Rendezvous(attempt.path / "rendezvous", attempt.run.run_id)
        slots = layout.slots
        self.steps = [
            Step(component, tuple(nodes[component.name]), slots[component.name])
            for component in layout.components
            if component.name in nodes
        ]
        self._slots = sum(map(len, slots.values()))

    def tend(self, say: Callable[[Step], None]) -> None:
        """Start what is to be started, and again what did not start well; call it often.

        Args:
            say: told of each start.

        Raises:
            RoleFailed: a step did not start, however often it was tried.
        """
        now = time.monotonic()
        reported = set(map(int, self._rendezvous.published("slots"))) if not all(step.up for step in self.steps) else set()
        for step in self.steps:
            if step.up:
                continue
            if not reported.isdisjoint(step.slots):
                step.up = True
            elif step.ended() and now >= step.not_before:
                self._start(step, now)
                say(step)
            elif not step.ended() and now - step.started > self._start_s:
                log.error("step %s is not up after %.0f s", step.component.name, now - step.started)
                self._end(step)
            if step.ended() and not step.up and step.not_before < step.started:
                step.not_before = time.monotonic() + RETRY_S

    def ended(self) -> bool:
        """Whether every step that began has ended."""
        return all(step.ended() for step in self.steps)

    def lost(self) -> list[Step]:
        """Steps that were up and have ended."""
        return [step for step in self.steps if step.up and step.ended()]

    def end(self) -> None:
        """End every step that still runs, with all its processes."""
        for step in self.steps:
            if step.srun is not None and step.srun.poll() is None:
                step.srun.send_signal(signal.SIGTERM)
        for step in self.steps:
            self._end(step)

    def _start(self, step: Step, now: float) -> None:
        output = self._attempt.path / "logs" / f"step-{step.component.name}.log"
        if step.tries >= TRIES:
            raise RoleFailed(
                f"the step of component {step.component.name} on {','.join(step.nodes)} did not start in {step.tries} tries; "
                f"the end of its log:\n{tail(output)}\n",
                read=output,
                do="srun's own words are in the log of the job, RUN/slurm/JOB.log",
            )
        command = srun_command(
            self._layout,
            step.component,
            site=self._site,
            job=self._job,
            arguments=(
                str(self._attempt.run.path),
                str(self._attempt.number),
                str(step.slots.start),
                str(self._slots),
                step.component.name,
            ),
            output=output,
            environ=os.environ,
            nodes=step.nodes,
        )
        step.srun = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        step.tries, step.started = step.tries + 1, now
        log.info("step %s, slots %d to %d, on %s", step.component.name, step.slots.start, step.slots[-1], step.nodes)

    def _end(self, step: Step) -> None:
        if step.srun is None:
            return
        if step.srun.poll() is None:
            step.srun.send_signal(signal.SIGTERM)
        try:
            step.srun.wait(SRUN_GRACE_S)
        except subprocess.TimeoutExpired:
            step.srun.kill()
            step.srun.wait()
