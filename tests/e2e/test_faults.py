"""Processes are killed in random order: the run heals itself, and its history proves that no row was lost or used twice."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.testing.command_run import CommandRun
from hpcrl.tracking.journal import RunJournalReader

pytestmark = pytest.mark.slow

STEPS = 50
IN_PLACE = ("queue.0", "rollout.0", "reward.0", "inference.0")


def steps_of(run: Path) -> dict[int, list[int]]:
    """Steps in the order in which each attempt trained them."""
    steps: dict[int, list[int]] = {}
    for attempt, _, record in RunJournalReader(RunDirectory.open(run)).read():
        if record["kind"] == "step":
            steps.setdefault(attempt, []).append(record["step"])
    return steps


@pytest.mark.parametrize("window", [1, 2])
def test_a_run_goes_on_whatever_is_killed(launcher: Any, tmp_path: Path, nothing_left: Any, window: int):
    run, draw = tmp_path / "run", random.Random(window)
    # Each twice, some before and some after the trainer.
    victims = [*draw.sample(IN_PLACE, 4), *draw.sample(IN_PLACE, 4)]
    victims.insert(draw.randrange(3, 6), "trainer.0")
    process = launcher.start(*launcher.arguments(run, steps=STEPS, window=window, groups__trainer__role__save_every=5))
    held = CommandRun(process, run)
    held.await_step(6)
    for name in victims:
        held.kill(name)
    ended = launcher.finish(process, run, 300)
    assert ended.code == 0, ended.output
    assert ended.output.count("trainer.0 was killed by SIGKILL; the run goes on from step") == 1
    nothing_left(ended)

    first, second = (steps_of(run)[attempt] for attempt in (1, 2))
    again = second[0]
    assert first == list(range(1, len(first) + 1))
    assert second == list(range(again, STEPS + 1))
    assert 5 < again <= len(first) + 1, "from a save, and no step is left out"
    assert f"the run goes on from step {again - 1} in attempt 2" in ended.output
    restarts = ended.records("restart")
    assert [record["process"] for record in restarts] == [name for name in victims if name != "trainer.0"]
    assert {record["signal"] for record in restarts} == {"SIGKILL"}
    assert ended.cursor() == {"step": STEPS, "prompts": 4 * STEPS, "beyond": []}
    outcome = held.finish()
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert sorted(itertools.chain.from_iterable(held.steps.values())) == list(range(4 * STEPS)), "each prompt once"
    assert outcome.evidence.report.clean, outcome.evidence.report
