from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


def create(path: Path) -> RunDirectory:
    return RunDirectory.create(path, name="t", recipe_json="{}")


def test_a_run_is_found_again_with_its_attempts(tmp_path: Path):
    run = create(tmp_path / "run")
    first, second = run.new_attempt(), run.new_attempt()
    assert (first.number, second.number) == (1, 2)
    again = RunDirectory.open(tmp_path / "run")
    assert again.run_id == run.run_id
    assert again.latest() == type(second)(again, 2)
    assert os.readlink(run.path / "latest") == "attempt_2"


def test_the_key_is_secret_and_the_runs_own(tmp_path: Path):
    one, two = create(tmp_path / "one"), create(tmp_path / "two")
    assert stat.S_IMODE((one.path / "key").stat().st_mode) == 0o600
    assert one.key != two.key
    assert one.run_id != two.run_id


def test_the_directory_of_another_run_is_refused_and_left_alone(tmp_path: Path):
    run = create(tmp_path / "run")
    before = (run.path / "run.json").read_text()
    with pytest.raises(CheckFailed, match=run.run_id):
        create(tmp_path / "run")
    assert (run.path / "run.json").read_text() == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckFailed, match="not empty"):
        create(tmp_path)


def test_a_place_that_cannot_be_written_is_named():
    with pytest.raises(CheckFailed, match=r"/sys/hpcrl.*cannot be written"):
        create(Path("/sys/hpcrl"))


def test_no_run_directory(tmp_path: Path):
    with pytest.raises(CheckFailed, match=r"not the directory of a run \(its run\.json"):
        RunDirectory.open(tmp_path)
    with pytest.raises(CheckFailed, match="no attempt"):
        create(tmp_path / "run").latest()
