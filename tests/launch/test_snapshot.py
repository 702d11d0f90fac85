from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcrl
from hpcrl.data.graders import exact_number
from hpcrl.launch.snapshot import code_of, freeze, paths_of, with_own_files, write_code
from hpcrl.recipe import Recipe, RoleGroup, Schedule
from hpcrl.roles.reward import Reward


def recipe(function: str) -> Recipe:
    return Recipe(
        name="one",
        groups={"reward": RoleGroup(role=Reward(function=function))},
        streams=(),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package and a module that are imported from a folder outside of the environment."""
    folder = tmp_path / "elsewhere"
    (folder / "my_package" / "inner").mkdir(parents=True)
    (folder / "my_package" / "__init__.py").write_text("from my_package.inner import deep\n")
    (folder / "my_package" / "inner" / "__init__.py").write_text("")
    (folder / "my_package" / "inner" / "deep.py").write_text("WORD = 'as submitted'\n")
    (folder / "my_package" / "words.txt").write_text("data")
    (folder / "my_module.py").write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(str(folder))
    __import__("my_package")
    __import__("my_module")
    yield folder
    for name in [name for name in sys.modules if name.startswith(("my_package", "my_module"))]:
        del sys.modules[name]


def test_what_was_imported_from_elsewhere_is_kept_and_alone_found(outside: Path, tmp_path: Path):
    code, problems = code_of(tmp_path / "recipes", ())
    assert problems == []
    run = tmp_path / "run"
    run.mkdir()
    write_code(code, run)
    assert not list(run.glob("**/__pycache__"))
    (outside / "my_package" / "inner" / "deep.py").write_text("WORD = 'edited'\n")
    script = "import my_module, hpcrl, my_package; print(my_package.deep.WORD, my_module.NUMBER, hpcrl.__file__)"
    environ = {"PYTHONPATH": ":".join(map(str, paths_of(code, run))), "PYTHONSAFEPATH": "1"}
    seen = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True).stdout
    assert seen.split() == ["as", "submitted", "1", str(run / "code" / "hpcrl" / "__init__.py")]
    assert (run / "code" / "my_package" / "words.txt").exists()


def test_modules_beside_the_recipe_are_left_to_the_run_directory(outside: Path):
    code, _ = code_of(outside, ())
    assert set(code.packages) == {"hpcrl"}


def test_folders_that_are_named(tmp_path: Path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "src" / "other").mkdir(parents=True)
    (tmp_path / "src" / "other" / "late.py").write_text("")
    code, problems = code_of(tmp_path, (tmp_path / "pack", tmp_path / "src"))
    assert problems == []
    run = tmp_path / "run"
    run.mkdir()
    write_code(code, run)
    assert (run / "code" / "pack" / "__init__.py").exists()
    assert paths_of(code, run) == (run / "code", run / "code" / "path" / "0-src")
    assert (run / "code" / "path" / "0-src" / "other" / "late.py").exists()
    assert code_of(tmp_path, (tmp_path / "nix",))[1] == [f"--code {tmp_path / 'nix'}: there is no such folder"]


def test_a_folder_full_of_data_is_refused(tmp_path: Path):
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(65 << 20)
    (problem,) = code_of(tmp_path / "recipes", (tmp_path,))[1]
    assert "more than 64 MiB" in problem


def test_files_that_functions_are_named_in_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/rewards.py").write_text("def grade(response, item): return 1.0\n")
    run = tmp_path / "run"
    run.mkdir()
    code, _ = code_of(tmp_path, ())
    moved, code = with_own_files(recipe("mine/rewards.py:grade"), code, run)
    write_code(code, run)
    assert moved.groups["reward"].role.function == f"{run}/code/files/rewards.py:grade"
    assert (run / "code" / "files" / "rewards.py").read_text() == Path("mine/rewards.py").read_text()
    plain = recipe(f"{exact_number.__module__}:exact_number")
    assert with_own_files(plain, code, run)[0] == plain


def test_freeze_names_what_is_installed():
    lines = freeze().splitlines()
    assert lines[0].startswith("# Python 3.")
    assert any(line.startswith("click==") for line in lines)
    assert f"hpcrl=={hpcrl.__version__}" in lines
