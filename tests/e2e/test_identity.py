"""Going on with something else than what a run was made with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]


def test_another_dataset_is_refused_before_anything_starts_and_taken_when_forced(launcher: Any, tmp_path: Path):
    data = tmp_path / "my prompts.jsonl"
    shutil.copy(launcher.data, data)
    run = tmp_path / "run"
    code, output = launcher.call(*launcher.arguments(run, "--in-process", steps=2, data=data))
    assert code == 0, output
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(reversed(lines)))
    code, output = launcher.call("run", "--resume", str(run), "--in-process")
    assert code == 2
    assert "dataset of rollout, file 1: was " in output
    assert "nothing was started" in output
    assert len(list(run.glob("attempt_*"))) == 1
    code, output = launcher.call("run", "--resume", str(run), "--in-process", "--force")
    assert code == 0, output
    assert launcher.call("run", str(run / "recipe.py"), "--force")[0] == 2
