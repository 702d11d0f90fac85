"""The parts of tools/gpu that need no GPU, as nothing else runs those scripts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpcrl.config.load import load_recipe_module
from hpcrl.engines.sglang.command import arguments

GPU = Path(__file__).resolve().parents[2] / "tools" / "gpu"


@pytest.fixture
def script(monkeypatch):
    """Imports a script as Python does that runs it."""
    monkeypatch.syspath_prepend(str(GPU))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"gpu_{name}", GPU / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.modules.pop("modes", None)


def test_the_bare_server_has_the_settings_of_the_runs_own(script):
    recipe = load_recipe_module(GPU.parents[1] / "recipes" / "grpo_gym.py").recipe()
    sglang, place = script("overhead").bare_place(recipe, Path("/models/small"), 31_555)
    assert sglang is recipe.groups["inference"].role.sglang
    command = arguments(sglang, place)
    given = dict(zip(command[::2], command[1::2], strict=False))
    assert (given["--model-path"], given["--port"], given["--nccl-port"]) == ("/models/small", "31555", "31556")
    assert place.gpus == (0,)
    assert "--max-running-requests" in command


def test_figures_of_a_run_from_its_journal(script):
    modes = script("modes")
    step = {
        "kind": "step",
        "tokens": 100,
        "response_tokens": 10.0,
        "logprob_gap_mean": 0.01,
        "logprob_gap_max": 0.2,
        "version_lag_mean": 0.5,
        "version_lag_max": 1,
        "version_lags": {"0": 50, "1": 50},
        "wait_s": 1.0,
        "train_s": 0.2,
        "publish_s": 0.1,
    }
    steps = [{**step, "t": 100.0 + 2 * number, "reward": number / 10} for number in range(9)]
    handover = {"kind": "handover", "t": 112.0, "giver": "trainer", "seconds": 0.3, "freed_bytes": 2**31, "left_bytes": 2**30}
    served = {"kind": "served", "t": 112.0, "load_s": 0.4}
    load = modes.Load({0: [(99.0, 1.0), (111.0, 0.25), (113.0, 0.75)]})
    found = modes.figures("colocated-1", [*steps, handover, served], load, 30.0)
    assert found["step_s"] == pytest.approx(2.0)
    assert found["tokens_per_s"] == pytest.approx(50.0)
    assert found["idle"] == [0.5]
    assert found["lags"] == {"0": 200, "1": 200}
    assert found["load_s"] == 0.4
    assert found["reward_curve"][-1] == [16.0, 0.8]
    (line,) = modes.handovers(found["handovers"])
    assert "1 times handed on by trainer: median 0.300 s" in line
    assert "released 2.0 GiB, at most 1.0 left" in line
    modes.show(found)
