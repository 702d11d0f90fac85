"""What docs/formats.md shows reads what a run leaves, with plain tools."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.versions import read_version
from hpcrl.dataplane.interface import Batch, Block
from hpcrl.dataplane.trajectories import agent
from hpcrl.dataplane.trajectories.keeper import _saved
from hpcrl.dataplane.trajectories.layout import STREAM, TAKEN, folder_of
from hpcrl.dataplane.trajectories.request import Done, Request
from hpcrl.run.directory import RunDirectory

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunDirectory, str], dict[str, object]]:
    """Runs the example of a section in a run's directory; returns its names."""

    def run(where: RunDirectory, section: str) -> dict[str, object]:
        text = DOCS.read_text(encoding="utf-8").partition(f"## {section}")[2].partition("\n## ")[0]
        (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        monkeypatch.chdir(where.path)
        names: dict[str, object] = {}
        exec(compile(code, str(DOCS), "exec"), names)
        return names

    return run


@pytest.mark.slow
def test_saves(trained, example, capsys):
    names = example(trained, "Saves")
    assert capsys.readouterr().out == "4 16 16\n"
    tensors = names["tensors"]
    assert all(bool(tensor.isfinite().all()) and bool(tensor.any()) for tensor in tensors.values())
    states = torch.load(names["save"] / "rng-0.pt", weights_only=True)
    assert "torch" in states
    assert np.load(names["save"] / "trained.npy").tolist() == list(range(8))


@pytest.mark.slow
def test_versions(trained, example, capsys):
    names = example(trained, "Published policy versions")
    assert capsys.readouterr().out == "4 3 20\n"
    assert hash_tensors(names["tensors"]) == read_version(trained.weights, 4).hash
    text = (names["weights"] / "v000004" / "patch.safetensors").read_bytes()
    assert b'"method:' in text[:5000]


@pytest.mark.parametrize("method", ["sparse", "xor", "full"])
def test_every_method_of_a_patch(trained, example, method, capsys):
    from hpcrl.checkpoint.publish.codec import encode

    names = example(trained, "Published policy versions")
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 16, 50_000).astype(np.uint16)
    new = old.copy()
    if method == "sparse":
        new[[0, 7, 49_999]] ^= 3
    else:
        new = old ^ 1 if method == "xor" else rng.integers(0, 1 << 16, 50_000).astype(np.uint16)
    made = encode(old, new)
    assert made.method == method
    names["patch"](old, made.method, bytes(made.data))
    assert (old == new).all()


def test_trajectories(tmp_path, example, capsys):
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    values = {
        "prompt_number": np.array([4, 4], np.int64),
        "sample_index": np.array([0, 1], np.int32),
        "reward": np.array([1.0, 0.25], np.float32),
        "outcome": np.zeros(2, np.int8),
        "prompt_ids": [np.array([1], np.int32)] * 2,
        "response_ids": [np.array([1, 2], np.int32)] * 2,
        "rollout_logprobs": [np.array([-1, -2], np.float32)] * 2,
        "versions": [np.array([0, 0], np.int32)] * 2,
        "response": ["Grüße", "second"],
        "item": ["{}"] * 2,
        "finish": ["stop"] * 2,
    }
    assert set(values) == set(TAKEN)
    block = _saved(1, Batch("samples", values, (Block(np.array([8, 9], np.int64)),)), 2, [0.5, -0.5])
    folder = folder_of(run.new_attempt())
    asked = Request(folder=str(folder), run_id=run.run_id, attempt=1, after=0, first_step=1, last_step=1)
    assert isinstance(agent.answer(asked, [block]), Done)
    example(run, "Trajectories")
    assert capsys.readouterr().out == "1 0.25 second\n1 1.0 Grüße\n"


def test_every_column_of_trajectories_is_explained():
    text = DOCS.read_text(encoding="utf-8").partition("## Trajectories")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))))
    assert named == {column.name for column in STREAM.columns}
