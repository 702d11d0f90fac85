from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.config.codec import recipe_from_json, recipe_to_json
from hpcrl.config.load import load_recipe_module
from hpcrl.plan.plan import check_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))
HEAVY = {"torch", "transformers", "tokenizers", "mlflow", "transfer_queue", "torchtitan", "reasoning_gym", "pebble"}


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def recipe(request):
    return load_recipe_module(request.param).recipe()


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"quickstart", "grpo_gsm8k"}


def test_contracts_of_the_streams_hold(recipe):
    assert check_recipe(recipe) == []


def test_every_stream_column_is_written_and_the_trainer_is_the_end(recipe):
    (stream,) = recipe.streams
    written = [name for group in recipe.groups.values() for w in group.role.writes() for name in w.columns]
    assert sorted(written) == sorted(column.name for column in stream.columns)
    assert [n for n, g in recipe.groups.items() if any(r.final for r in g.role.reads())] == ["trainer"]
    assert stream.block_rows == recipe.schedule.samples_per_prompt


def test_recipe_survives_json(recipe):
    assert recipe_from_json(recipe_to_json(recipe)) == recipe


def test_behaviour_log_probabilities_belong_to_the_sampling_temperature(recipe):
    assert recipe.groups["trainer"].role.temperature == recipe.groups["rollout"].role.sampling.temperature


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_importing_and_building_a_recipe_imports_nothing_heavy(path):
    code = (
        "import json, sys; from pathlib import Path; from hpcrl.config.load import load_recipe_module; "
        "load_recipe_module(Path(sys.argv[1])).recipe(); print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    assert "hpcrl_recipe" in modules
    assert not modules & HEAVY
