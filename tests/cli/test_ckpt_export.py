"""Exported folders load, and have the weights that were published."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcrl.checkpoint.export.folder import beside_of
from hpcrl.checkpoint.export.folder import export as write
from hpcrl.checkpoint.export.source import PublishedVersion
from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import read_version
from hpcrl.cli.main import cli
from hpcrl.run.directory import RunDirectory
from hpcrl.run.disk import DiskError
from hpcrl.run.errors import CheckFailed
from hpcrl.run.failpoints import VARIABLE, armed

pytestmark = pytest.mark.slow
Flip = Callable[[Path], None]


def call(run: RunDirectory, target: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["ckpt", "export", str(run.path), "--hf", str(target), *arguments])


def problem(done: Result) -> str:
    assert isinstance(done.exception, CheckFailed), (done.output, done.exception)
    return str(done.exception)


def loaded_hash(folder: Path) -> str:
    """As transformers loads it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(folder)
    return hash_tensors(AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out, 東京"


def test_a_version_out_of_its_chain(trained: RunDirectory, target: Path) -> None:
    done = call(trained, target, "--version", "2")
    assert done.exit_code == 0, (done.output, done.exception)
    published = read_version(trained.weights, 2).hash
    assert published in done.output
    assert loaded_hash(target) == published
    assert sorted(path.name for path in target.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "hpcrl_export.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    about = json.loads((target / "hpcrl_export.json").read_text())
    assert (about["of"]["version"], about["hash"], about["of"]["run_id"]) == (2, published, trained.run_id)
    assert not beside_of(target).exists()


def test_the_newest_where_none_is_named_into_an_empty_folder(trained: RunDirectory, target: Path) -> None:
    target.mkdir()
    assert "of policy version 4" in call(trained, target).output
    assert loaded_hash(target) == read_version(trained.weights, 4).hash


def test_a_save_of_the_trainer_is_what_was_published_then(trained: RunDirectory, target: Path, tmp_path: Path) -> None:
    done = call(trained, target, "--step", "3")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "of save step-00000003.a1.3" in done.output
    assert "the same as policy version 3" in done.output
    assert loaded_hash(target) == read_version(trained.weights, 3).hash
    wide = tmp_path / "wide"
    assert call(trained, wide, "--step", "3", "--dtype", "float32").exit_code == 0
    assert json.loads((wide / "config.json").read_text())["dtype"] == "float32"
    assert (wide / "model.safetensors").stat().st_size > 1.9 * (target / "model.safetensors").stat().st_size


def test_a_save_without_any_version_takes_the_model_that_the_run_began_with(trained: RunDirectory, target: Path) -> None:
    published = read_version(trained.weights, 4).hash
    for path in trained.weights.iterdir():
        path.rename(trained.path / path.name)
    assert call(trained, target, "--step", "4").exit_code == 0
    assert loaded_hash(target) == published


def test_what_is_wrong_is_said_before_anything_is_written(trained: RunDirectory, target: Path, flip: Flip) -> None:
    assert "has no policy version 7; nearest: 3 and 4" in problem(call(trained, target, "--version", "7"))
    assert "has no save 9; nearest: 3 and 4" in problem(call(trained, target, "--step", "9"))
    assert call(trained, target, "--step", "1", "--version", "1").exit_code == 2
    assert call(trained, target, "--version", "1", "--dtype", "float32").exit_code == 2
    assert "there is no folder" in problem(call(trained, target / "deep" / "deeper"))
    (trained.state / "step-00000004.a1.4" / "manifest.json").unlink()
    assert "step-00000004.a1.4 of run" in problem(call(trained, target, "--step", "4"))
    flip(trained.state / "step-00000003.a1.3" / "__0_0.distcp")
    assert "__0_0.distcp is damaged" in problem(call(trained, target, "--step", "3"))
    flip(trained.weights / "v000000" / "config.json")
    assert "config.json is damaged" in str(call(trained, target, "--version", "1").exception)
    assert not target.exists()
    target.mkdir()
    (target / "mine").write_text("mine")
    assert f"{target} is there already" in problem(call(trained, target))
    assert (target / "mine").read_text() == "mine"


@pytest.mark.parametrize("file", ["v000000/model.safetensors", "v000001/patch.safetensors", "v000002/patch.safetensors"])
def test_damaged_tensors_never_come_to_be_a_folder(trained: RunDirectory, target: Path, flip: Flip, file: str) -> None:
    flip(trained.weights / file)
    error = call(trained, target, "--version", "2").exception
    assert isinstance(error, WeightsError), error
    assert not target.exists()


def test_a_full_disk_names_the_path_and_the_same_command_goes_on(trained: RunDirectory, target: Path) -> None:
    source = PublishedVersion(trained.weights, 4, trained.run_id)
    with armed("disk.write~model-00003@1+=errno:ENOSPC"), pytest.raises(DiskError) as failed:
        write(source, target, shard_bytes=30_000)
    assert "the disk is full: make room on it" in str(failed.value)
    assert f"what is done stays in {beside_of(target)}" in str(failed.value)
    assert not target.exists()
    (first,) = beside_of(target).glob("model-00001-of-*")
    made = first.stat().st_mtime_ns
    read = []
    ours = PublishedVersion(trained.weights, 4, trained.run_id)
    ours.read, whole = lambda name: read.append(name) or whole(name), ours.read  # type: ignore[method-assign,func-returns-value]
    assert write(ours, target, shard_bytes=30_000) == read_version(trained.weights, 4).hash
    assert (target / first.name).stat().st_mtime_ns == made, "files that were whole are not written again"
    assert 0 < len(read) < len(source.specs)
    assert loaded_hash(target) == read_version(trained.weights, 4).hash
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(source.specs)


def test_what_another_export_has_left_is_not_taken_up(trained: RunDirectory, target: Path, flip: Flip) -> None:
    with armed("disk.write~model-00003@1+=errno:ENOSPC"), pytest.raises(DiskError):
        write(PublishedVersion(trained.weights, 1, trained.run_id), target, shard_bytes=30_000)
    with armed("disk.write~model-00003@1+=errno:ENOSPC"), pytest.raises(DiskError):
        write(PublishedVersion(trained.weights, 4, trained.run_id), target, shard_bytes=30_000)
    flip(next(beside_of(target).glob("model-00001-of-*")))
    (beside_of(target) / "stray").write_text("x")
    write(PublishedVersion(trained.weights, 4, trained.run_id), target, shard_bytes=30_000)
    assert loaded_hash(target) == read_version(trained.weights, 4).hash
    assert not (target / "stray").exists()


@pytest.mark.parametrize(
    "point", ["disk.mkdir", "disk.write~model.safetensors", "disk.fsync~model.safetensors", "disk.create~progress.json",
              "disk.create~tokenizer.json", "disk.create~hpcrl_export.json", "disk.rename~.export@1+"]
)  # fmt: skip
def test_killed_at_any_point_the_same_command_makes_it_whole(trained: RunDirectory, target: Path, point: str) -> None:
    command = [sys.executable, "-m", "hpcrl.cli.main", "ckpt", "export", str(trained.path), "--hf", str(target)]
    killed = subprocess.run(command, env={**os.environ, VARIABLE: point}, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not target.exists()
    done = call(trained, target)
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads((target / "hpcrl_export.json").read_text())["hash"] == read_version(trained.weights, 4).hash
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_two_at_once_do_not_meet(trained: RunDirectory, target: Path) -> None:
    first = PublishedVersion(trained.weights, 4, trained.run_id)
    said: list[str] = []
    plain = first.read

    def meanwhile(name: str):  # type: ignore[no-untyped-def]
        if not said:
            said.append(problem(call(trained, target)))
        return plain(name)

    first.read = meanwhile  # type: ignore[method-assign]
    write(first, target)
    assert "another export is writing" in said[0]
    assert target.exists()
