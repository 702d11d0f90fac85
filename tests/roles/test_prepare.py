"""What roles import ahead, in a process of its own: all that takes long, and nothing that a fork could not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CODE = """
import json, sys
from hpcrl.data.records import Records
from hpcrl.engines.completion import Sampling
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.trainer import Trainer
from hpcrl.supervise.spare import _unfit
model = sys.argv[1]
roles = {
    "rollout": lambda: Rollout(model=model, dataset=Records(paths=("a",)), sampling=Sampling(max_new_tokens=4)),
    "reward": lambda: Reward(function="hpcrl.data.graders:exact_number"),
    "inference": lambda: Inference(model=model),
    "beside": lambda: Inference(model=model, sglang=Sglang()),
    "trainer": lambda: Trainer(model=model),
}
roles[sys.argv[2]]().prepare(gpus=False)
print(json.dumps({"modules": sorted(sys.modules), "unfit": _unfit()}))
"""


def prepared(role: str, model: Path) -> dict[str, Any]:
    found = subprocess.run([sys.executable, "-c", CODE, str(model), role], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(found.stdout)
    return said


@pytest.mark.parametrize(
    ("role", "modules"),
    [
        ("rollout", {"numpy", "aiohttp", "hpcrl.roles.producer"}),
        ("reward", {"numpy", "pebble"}),
        (
            "inference",
            {"torch", "transformers.models.llama.modeling_llama", "hpcrl.engines.embedded.engine", "hpcrl.roles.fence"},
        ),
        ("beside", {"hpcrl.engines.sglang.server", "hpcrl.roles.fence"}),
        ("trainer", {"torch", "torchtitan.models.llama3.model", "hpcrl.engines.titan.build", "hpcrl.checkpoint.state.saver"}),
    ],
)
def test_what_takes_long_is_imported_and_forks_of_it_work(role: str, modules: set[str], tiny_model: Path):
    said = prepared(role, tiny_model)
    assert modules - set(said["modules"]) == set()
    assert said["unfit"] == ""
    if role in ("rollout", "reward", "beside"):
        assert not {"torch", "transformers"} & set(said["modules"])
