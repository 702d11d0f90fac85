from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.launch.find import find_run, root_for_new, roots, runs_in
from hpcrl.launch.site import Site
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCRL_RUNS", raising=False)
    return tmp_path


def make(path: Path) -> RunDirectory:
    return RunDirectory.create(path, name=path.name, recipe_json="{}")


def test_a_run_is_found_by_directory_and_by_name(here: Path, monkeypatch: pytest.MonkeyPatch):
    near, far = make(here / "runs" / "near"), make(here / "big" / "far")
    assert find_run("near") == find_run("runs/near") == find_run(here / "runs" / "near") == near
    with pytest.raises(CheckFailed, match="no run of that name"):
        find_run("far")
    monkeypatch.setenv("HPCRL_RUNS", f"{here}/nix:{here}/big")
    assert find_run("far") == far
    assert find_run("near") == near
    assert [path.name for path in roots()][:2] == ["big", "runs"]


def test_an_unknown_name_lists_the_nearest(here: Path):
    make(here / "runs" / "sums-2")
    with pytest.raises(CheckFailed, match=r"'sums-3' is not .*nearest: sums-2"):
        find_run("sums-3")


def test_a_folder_that_is_no_run_says_so(here: Path):
    (here / "empty").mkdir()
    with pytest.raises(CheckFailed, match=r"empty is not the directory of a run"):
        find_run("empty")


def test_runs_of_a_folder_newest_first_without_damaged_ones(here: Path):
    for name, run_id in (("a", "20260101-000000-a"), ("b", "20260301-000000-b")):
        make(here / name)
        (here / name / "run.json").write_text(f'{{"run_id": "{run_id}", "name": "x"}}')
    make(here / "c")
    (here / "c" / "run.json").write_text("{")
    assert [run.path.name for run in runs_in(here)] == ["b", "a"]


def test_where_a_new_run_goes():
    site = Site(scratch="/scratch/$USER")
    assert root_for_new(site, {"HPCRL_RUNS": "/a:/b", "USER": "me"}) == Path("/a")
    assert root_for_new(site, {"USER": "me"}) == Path("/scratch/me")
    assert root_for_new(Site(), {}) == root_for_new(None, {}) == Path("runs")
