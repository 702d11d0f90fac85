"""A run without MLflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpcrl.launch.tracker import tracker
from hpcrl.run.directory import RunDirectory


def test_missing_mlflow_is_said_once_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", name="toy", recipe_json=json.dumps({"name": "toy"}))
    attempt = run.new_attempt()
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with tracker(run, attempt, None) as ask_to_end:
        ask_to_end()
    said = capsys.readouterr().err
    assert said.count("MLflow is not installed") == 1
    assert f"hpcrl.tracking.feed {run.path} --once" in said
    assert not attempt.log("tracker").exists()
