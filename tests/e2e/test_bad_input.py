"""Whatever a person gets wrong is said before anything starts: exit code 2, clear words, no run directory, no process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow

# Recipes that differ from the tiny one in what its function returns.
VARIANT = """
from dataclasses import dataclass, replace
import importlib.util, sys
spec = importlib.util.spec_from_file_location("tiny_base", {base!r})
base = importlib.util.module_from_spec(spec)
sys.modules["tiny_base"] = base
sys.path.insert(0, {folder!r})
spec.loader.exec_module(base)
from hpcrl.recipe import Column, Reads, Recipe, Role, RoleGroup, Stream, Writes

@dataclass(frozen=True, kw_only=True)
class Filter(Role):
    source: str
    sink: str
    def reads(self):
        return (Reads(stream=self.source, columns=("x",), final=True),)
    def writes(self):
        return (Writes(stream=self.sink, columns=("x",), creates=True),)

def loop(recipe):
    streams = tuple(Stream(name=name, columns=(Column(name="x", dtype="int64"),)) for name in ("there", "back"))
    ping, pong = (RoleGroup(role=Filter(source=a, sink=b)) for a, b in (("back", "there"), ("there", "back")))
    return replace(recipe, groups={{**recipe.groups, "ping": ping, "pong": pong}}, streams=recipe.streams + streams)

def twice(recipe):
    return replace(recipe, groups={{**recipe.groups, "judge": recipe.groups["reward"]}})

def nobody(recipe):
    return replace(recipe, groups={{name: group for name, group in recipe.groups.items() if name != "reward"}})

def recipe(model: str, data: str, change: str = "loop", steps: int = 3) -> Recipe:
    return globals()[change](base.recipe(model=model, data=data, steps=steps))
"""


@pytest.fixture
def refused(launcher: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs it, asserts that it was refused before anything started, and returns what was said."""
    run = tmp_path / "refused"
    children = set(psutil.Process().children(recursive=True))

    def call(*options: str, run: Path = run, recipe: Path | None = None, **sets: Any) -> str:
        more = {} if recipe is None else {"recipe": recipe}
        code, said = launcher.call(*launcher.arguments(run, *options, **more, **sets))
        assert code == 2, said
        assert "nothing was started" in said
        assert "Traceback" not in said
        assert not list(run.glob("attempt_*"))
        assert set(psutil.Process().children(recursive=True)) <= children
        return said

    yield call
    assert not (run / "run.json").exists()


@pytest.fixture
def variant(launcher: Any, tmp_path: Path) -> Path:
    base = Path(__file__).with_name("tiny_recipe.py")
    path = tmp_path / "variant.py"
    path.write_text(VARIANT.format(base=str(base), folder=str(base.parent)))
    return path


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"model": "/nowhere/model"}, ["model directory /nowhere/model does not exist"]),
        ({"data": "/nowhere/prompts.jsonl"}, ["dataset /nowhere/prompts.jsonl cannot be read"]),
        ({"reward": "tiny_helper:nothing"}, ["reward module 'tiny_helper' has no function 'nothing'", "vowel_reward"]),
        ({"reward": "no_such_module:f"}, ["reward module 'no_such_module' cannot be imported", "ModuleNotFoundError"]),
        ({"reward": "/nowhere/reward.py:f"}, ["/nowhere/reward.py", "does not exist"]),
        ({"schedule__samples_per_prompt": 0}, ["samples_per_prompt"]),
        ({"steps": 0}, ["steps"]),
        ({"prompts_per_step": 0}, ["prompts_per_step"]),
        ({"window": 0}, ["window"]),
        ({"groups__trainer__resources__gpus": 64}, ["GPU", "64"]),
        ({"stepz": 4}, ["stepz", "nearest", "steps"]),
        ({"trainer__lrr": 0.1}, ["lrr", "nearest", "lr"]),
        ({"steps": "many"}, ["steps", "many", "int"]),
        ({"groups__rollout__role__sampling__max_new_tokens": 250}, ["prompts.jsonl:1", "max_new_tokens 250", "context of 128"]),
        ({"groups__rollout__replicas": 0}, ["rollout", "replicas"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_wrong_values(refused: Callable[..., str], sets: dict[str, Any], words: list[str]):
    said = refused(**sets)
    assert [word for word in words if word not in said] == [], said


def test_a_line_that_is_not_json_is_named(refused: Callable[..., str], tmp_path: Path):
    data = tmp_path / "torn.jsonl"
    data.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "ans\n{"prompt": "c", "answer": "1"}\n{"question": "d"}\n')
    said = refused(data=data)
    assert f"{data}:2 is not JSON" in said
    assert f"{data}:4 has no field 'prompt'; it has ['question']" in said


def test_an_empty_dataset(refused: Callable[..., str], tmp_path: Path):
    data = tmp_path / "empty.jsonl"
    data.write_text("\n")
    assert f"dataset {data} is empty" in refused(data=data)


def test_a_vocabulary_that_is_not_the_tokenizers(refused: Callable[..., str], launcher: Any, tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(launcher.model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 90}))
    said = refused(model=model)
    assert f"the tokenizer in {model} makes token ids up to 97, but config.json has vocab_size 90" in said


def test_a_prompt_longer_than_the_context(refused: Callable[..., str], tmp_path: Path):
    data = tmp_path / "long.jsonl"
    lines = [{"prompt": "x", "answer": "1"}, {"prompt": "x" * 200, "answer": "1"}]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = refused(data=data)
    assert f"{data}:2: prompt of " in said
    assert "more than the context of 128" in said
    assert f"{data}:1" not in said


def test_two_roles_that_produce_the_same_column(refused: Callable[..., str], variant: Path):
    said = refused(recipe=variant, change="twice")
    assert "reward" in said
    assert "judge" in said


def test_a_column_that_nobody_produces(refused: Callable[..., str], variant: Path):
    assert "column reward is read by trainer and nobody produces it" in refused(recipe=variant, change="nobody")


def test_a_loop_of_streams_is_shown_whole(refused: Callable[..., str], variant: Path):
    assert "ping -(there: x)-> pong -(back: x)-> ping" in refused(recipe=variant, change="loop")


def test_everything_wrong_is_reported_at_once(refused: Callable[..., str], tmp_path: Path):
    said = refused(
        model="/nowhere/model", data="/nowhere/prompts.jsonl", reward="nothing:f", groups__trainer__resources__gpus=64
    )
    for words in ("/nowhere/model does not exist", "'nothing' cannot be imported", "64"):
        assert words in said
    assert said.count("  - ") >= 3


def test_all_wrong_names_and_types_are_reported_at_once(refused: Callable[..., str]):
    said = refused(stepz=4, windoww=2, steps="many")
    assert [word for word in ("stepz", "windoww", "steps=many: expected int") if word not in said] == []


def test_the_directory_of_another_run(launcher: Any, tmp_path: Path):
    from hpcrl.run.directory import RunDirectory

    run = tmp_path / "taken"
    RunDirectory.create(run, name="other", recipe_json="{}")
    code, said = launcher.call(*launcher.arguments(run))
    assert code == 2
    assert f"run directory {run} is the directory of another run" in said
    assert not list(run.glob("attempt_*"))
    assert json.loads((run / "run.json").read_text())["name"] == "other"


def test_a_directory_that_is_not_empty_or_a_file(refused: Callable[..., str], tmp_path: Path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    assert f"run directory {taken} is not empty" in refused(run=taken)
    assert f"run directory {taken / 'thesis.tex'} is a file" in refused(run=taken / "thesis.tex")
    assert "thesis.tex" in refused(run=taken / "thesis.tex" / "below")


def test_a_place_that_cannot_be_written(refused: Callable[..., str]):
    said = refused(run=Path("/sys/kernel/hpcrl-run"))
    assert "/sys/kernel" in said
    assert "cannot be written" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_too_small(refused: Callable[..., str], small_disk: Path):
    said = refused(run=small_disk / "run")
    assert f"run directory {small_disk / 'run'} needs about 0.1 GiB and its file system has 0.0 GiB free" in said


def test_a_disk_that_is_full_to_the_last_byte(refused: Callable[..., str], small_disk: Path):
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"x" * free)
    said = refused(run=small_disk / "run")
    assert "needs about" in said
    assert f"{small_disk} cannot be written (No space left on device)" in said


def test_resuming_what_is_no_run(launcher: Any, tmp_path: Path):
    code, said = launcher.call("run", "--resume", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is not the directory of a run" in said


@pytest.mark.parametrize("recipe", ["missing.py", "broken.py", "empty.py", "returns.py"])
def test_recipes_that_are_none(launcher: Any, tmp_path: Path, recipe: str):
    (tmp_path / "broken.py").write_text("x = 1\nimport nothing_of_that_name\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "returns.py").write_text("def recipe(steps: int = 1):\n    return 3\n")
    code, said = launcher.call("run", str(tmp_path / recipe), "--run-dir", str(tmp_path / "run"))
    assert code == 2, said
    assert str(tmp_path / recipe) in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_lacks_its_parameters(launcher: Any, tmp_path: Path):
    recipe = Path(__file__).with_name("tiny_recipe.py")
    code, said = launcher.call("run", str(recipe), "--run-dir", str(tmp_path / "run"))
    assert code == 2
    assert "model" in said
    assert "data" in said
    assert "--set" in said
