"""A signal in each phase of one run's life: saved, requeued, and gone on with exactly.

Either signal may come in any phase. The other one of each is in ``test_preemption.py``: SIGUSR1 in the first moment, in an
evaluation and a save, SIGTERM in a compile, and both while steps are trained.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

import pytest

from hpcrl.launch.layout import Component, Layout
from hpcrl.run.records import DoneRecords
from hpcrl.supervise.drain import drain_of

pytestmark = pytest.mark.slow

STEPS = 60
PART = Component(
    name="all",
    groups=("rollout", "reward", "inference", "trainer", "evaluator"),
    nodes=1,
    gpus_per_node=0,
    cpus_per_node=8,
    memory_gib=4,
    partition="main",
)
ONE_NODE = Layout(components=(PART,), no_kill=False, minutes=15)
USR1, TERM = ("--signal=USR1", "--batch"), ("--signal=TERM",)


@dataclass(frozen=True)
class Blow:
    """A signal to a job, once a process of it is in a phase.

    Attributes:
        steps: that must have been trained in this attempt before.
    """

    signal: tuple[str, ...]
    process: str
    phase: str
    steps: int = 0


def phase_of(run: Any, attempt: int, process: str, before: float = float("inf")) -> str:
    said = [r for r in run.written(attempt, process) if r["kind"] == "phase" and r["t"] <= before]
    return said[-1]["name"] if said else ""


def strike(run: Any, attempt: int, blow: Blow) -> None:
    run.wait_for(f"{blow.process} in {blow.phase}", lambda: phase_of(run, attempt, blow.process) == blow.phase)
    run.wait_for(f"{blow.steps} steps", lambda: len(run.records("step", attempt)) >= blow.steps)
    run.cluster.run("scancel", *blow.signal, run.job)


@pytest.mark.timeout(600)
def test_a_signal_in_every_phase(runs: Any):
    blows = (
        Blow(TERM, "trainer.0", "load"),
        Blow(USR1, "evaluator.0", "compile", steps=1),
        Blow(USR1, "trainer.0", "train"),
        Blow(TERM, "evaluator.0", "evaluation", steps=1),
        Blow(TERM, "trainer.0", "checkpoint"),
    )
    stays = {name: [blow.phase if blow.process == f"{name}.0" else "" for blow in blows] for name in ("trainer", "evaluator")}
    sets = [f"{name}_stays={','.join(phases)}" for name, phases in stays.items()]
    run = runs.submit("phased", ONE_NODE, f"steps={STEPS}", *sets)
    for attempt, blow in enumerate(blows, 1):
        strike(run, attempt, blow)
    run.wait("COMPLETED", "FAILED", "CANCELLED")
    run.went_on()
    assert len(run.run.attempts()) == len(blows) + 1
    for attempt, blow in enumerate(blows, 1):
        drain = drain_of(run.run.attempts()[attempt - 1])
        # A role may have ended of its SIGTERM before an ignitor could speak.
        assert blow.signal[0].removeprefix("--signal=") in drain.reason or (blow.signal == TERM and "stopped" in drain.reason)
        assert phase_of(run, attempt, blow.process, before=drain.t) == blow.phase
    deaf = DoneRecords(run.run.attempts()[1]).read()["evaluator.0"]
    assert (deaf.status, deaf.code) == ("failed", 128 + signal.SIGKILL), "it hears nothing while it compiles"
    run.trained_exactly(STEPS)
    run.nothing_is_left()
