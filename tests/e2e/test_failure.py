"""A role that fails ends the run with its code, its words and the last lines of its log, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]


def test_a_reward_that_fails_on_every_sample_ends_the_run_with_an_example(launcher: Any, tmp_path: Path, nothing_left: Any):
    ended = launcher.run(tmp_path / "run", steps=50, reward="tiny_helper:broken_reward")
    assert ended.code == 1, ended.output
    assert "reward.0" in ended.output
    assert "gave no grade for any sample of step 1" in ended.output
    assert ended.output.count("KeyError: 'no key for say ") >= 1, "one example with its error"
    assert "response: " in ended.output
    assert f"read {ended.path / 'attempt_1' / 'logs' / 'reward.0.log'}" in ended.output
    assert ended.steps() == []
    nothing_left(ended)
    code, shown = launcher.call("status", str(ended.path))
    assert code == 0
    assert shown.splitlines()[0].endswith("failed")
    assert "reward.0 on " in shown
    code, shown = launcher.call("logs", str(ended.path), "reward.0")
    assert code == 0
    assert "KeyError" in shown


def test_rewards_that_are_no_numbers_end_the_run(launcher: Any, tmp_path: Path):
    ended = launcher.in_process(tmp_path / "run", own_role=True, groups__reward__role__spoilt="true")
    assert ended.code == 1, ended.output
    assert "trainer.0" in ended.output
    assert "nan" in ended.output.lower()
    assert 1 not in ended.published(), "nothing learnt from it is served"
