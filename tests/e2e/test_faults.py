"""Processes are killed one after the other: the run heals itself, and its history proves that no row was lost or used twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.stop import wait_for
from hpcrl.tracking.journal import RunJournalReader

pytestmark = pytest.mark.slow

STEPS = 45
IN_PLACE = ("queue.0", "rollout.0", "reward.0", "inference.0")


def process_of(run: Path, name: str) -> psutil.Process | None:
    """The living process of that name of the run."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "hpcrl.supervise.process" in command and process.status() != psutil.STATUS_ZOMBIE:
            spec = json.loads(command[-1])
            if spec["run_directory"] == str(run) and f"{spec['identity']['group']}.{spec['identity']['rank']}" == name:
                return process
    return None


def steps_of(run: Path) -> dict[int, list[int]]:
    """Steps in the order in which each attempt trained them."""
    steps: dict[int, list[int]] = {}
    for attempt, _, record in RunJournalReader(RunDirectory.open(run)).read() if (run / "run.json").exists() else ():
        if record["kind"] == "step":
            steps.setdefault(attempt, []).append(record["step"])
    return steps


def trained(run: Path) -> int:
    return max((steps[-1] for steps in steps_of(run).values()), default=0)


@pytest.mark.parametrize("window", [1, 2])
def test_a_run_goes_on_whatever_is_killed(launcher: Any, tmp_path: Path, nothing_left: Any, window: int):
    run = tmp_path / "run"
    process = launcher.start(*launcher.arguments(run, steps=STEPS, window=window, groups__trainer__role__save_every=5))

    def kill_after(name: str, step: int) -> None:
        wait_for(f"step {step}", lambda: True if process.poll() is not None or trained(run) >= step else None, seconds=120)
        assert process.poll() is None, process.communicate()[0]
        wait_for(f"{name} to be there", lambda: process_of(run, name), seconds=60).kill()

    for name in IN_PLACE:
        kill_after(name, trained(run) + 3)
    kill_after("trainer.0", trained(run) + 3)
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
    assert [record["process"] for record in restarts] == list(IN_PLACE)
    assert {record["signal"] for record in restarts} == {"SIGKILL"}
    assert ended.cursor() == {"step": STEPS, "prompts": 4 * STEPS, "beyond": []}
    code, shown = launcher.call("verify", str(run))
    assert code == 0, shown
