from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.plan import command, ranges
from hpcrl.plan.plan import Plan

RECIPE = """
from dataclasses import dataclass
from hpcrl.recipe import *

@dataclass(frozen=True, kw_only=True)
class Rollout(Role):
    def writes(self):
        return (Writes(stream="samples", columns=("response",), creates=True),)
    def listens(self):
        return ("gate",)

@dataclass(frozen=True, kw_only=True)
class Trainer(Role):
    world = True
    process_per_gpu = True
    def reads(self):
        return (Reads(stream="samples", columns=("response",), final=True),)
    def announces(self):
        return ("gate",)

def recipe(gpus: int = 0, group_size: int = 4) -> Recipe:
    return Recipe(
        name="demo",
        groups={"rollout": RoleGroup(role=Rollout()), "trainer": RoleGroup(role=Trainer(), resources=Resources(gpus=gpus))},
        streams=(Stream(name="samples", columns=(Column(name="response", dtype="int32", ragged=True),)),),
        feedback=(FeedbackStream(name="gate"),),
        schedule=Schedule(steps=1, prompts_per_step=2, samples_per_prompt=group_size),
    )
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "demo.py"
    path.write_text(RECIPE)
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "160"})


def test_tables_show_placement_streams_and_hash(recipe):
    result = run(recipe, "--nodes", "2", "--gpus-per-node", "4", "--set", "gpus=4")
    assert result.exit_code == 0, result.output
    for part in ("trainer", "0-3", "4 x 1", "4 of 8 GPUs", "rollout: response", "gate (feedback)", "queue", "hash "):
        assert part in result.output


def test_json_is_the_plan(recipe):
    result = run(recipe, "--nodes", "2", "--gpus-per-node", "4", "--set", "gpus=2", "--json")
    plan = Plan.from_json(result.stdout)
    assert len(plan.of_group("trainer")) == 2
    assert plan.to_json() == result.stdout


def test_without_nodes_it_plans_for_this_host(recipe):
    result = run(recipe, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["allocation"]["nodes"][0]["address"] == "127.0.0.1"


def test_what_cannot_run_is_told_on_stderr_with_code_2(recipe):
    result = run(recipe, "--nodes", "1", "--gpus-per-node", "2", "--set", "gpus=4", "--set", "group_size=0")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "the group size" in result.stderr
    assert "4 GPUs are asked for and 1 node has 2" in result.stderr
    assert run(recipe, "--set", "grup_size=2").exit_code == 2
    assert "nearest: group_size" in run(recipe, "--set", "grup_size=2").stderr


def test_what_is_stated_of_nodes_is_checked(recipe):
    few = run(recipe, "--nodes", "1", "--cpus-per-node", "1")
    assert few.exit_code == 2
    assert "2 cores are asked for and all nodes together have 1" in few.stderr
    assert run(recipe, "--gpus-per-node", "4").exit_code == 2


def test_numbers_in_short():
    assert ranges([3, 1, 2, 7, 7]) == "1-3, 7"
    assert ranges([5]) == "5"
    assert ranges([]) == ""


def test_planning_imports_nothing_heavy(recipe):
    script = (
        "import sys\nfrom hpcrl.cli.plan import command\nlight = set(sys.modules)\n"
        f"command(['{recipe}', '--nodes', '1', '--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'transformers', 'mlflow', 'transfer_queue', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert 'hpcrl.plan.plan' not in light\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
