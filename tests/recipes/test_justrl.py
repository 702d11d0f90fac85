"""The three JustRL recipes: where their processes go on a cluster of any size, and that they run, small, on a CPU."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcrl.cli.plan import command
from hpcrl.config.override import build_recipe
from hpcrl.data.records import Records
from hpcrl.launch.choose import make_layout
from hpcrl.launch.layout import Asked
from hpcrl.launch.render import JobFacts, render_all
from hpcrl.launch.site import NodeShape, Site
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.run.errors import CheckFailed

RECIPES = Path(__file__).parents[2] / "recipes"
GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, tuple[str, int | None, int | None, tuple[str, ...]]] = {
    "justrl": ("justrl", None, None, ()),
    "justrl-2x4-tp2": ("justrl", 2, 4, ("tensor_parallel=2",)),
    "justrl-1x1": ("justrl", 1, 1, ()),
    "justrl_async": ("justrl_async", None, None, ()),
    "justrl_fully_async": ("justrl_fully_async", None, None, ()),
    "justrl_fully_async-1x4": ("justrl_fully_async", 1, 4, ("trainer_gpus=1",)),
}
JOB = JobFacts(run=Path("/runs/justrl"), run_id="20260101-000000-abc123", name="justrl", code=(), python=Path("/home/me/venv"))


def build(name: str, nodes: int | None = None, gpus: int | None = None, sets: tuple[str, ...] = ()) -> Any:
    return build_recipe(RECIPES / f"{name}.py", sets, size={"nodes": nodes, "gpus_per_node": gpus})


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str):
    """HPCRL_WRITE_GOLDEN=1 writes the files anew; look at the difference before keeping it."""
    name, nodes, gpus, sets = CASES[case]
    recipe = build(name, nodes, gpus, sets)
    site = Site(partition="gpu", node=NodeShape(gpus=gpus or 8, cpus=128, memory_gib=1000, gpu_memory_gib=141))
    layout = make_layout(recipe, Asked(nodes=nodes, gpus_per_node=gpus, time="24:00:00"), site)
    lines = []
    for process in make_plan(recipe, layout.allocation(), "golden", layout.mapping).processes:
        held = f"GPUs {','.join(map(str, process.gpus))}" if process.gpus else "no GPU"
        lines.append(
            f"{process.group}.{process.rank} (replica {process.replica}): {process.node}, {held}, {process.cpus} cores"
        )
    role = recipe.groups["trainer"].role
    trained = f"{role.minibatches} minibatches, streamed {role.stream_minibatches}, window {recipe.schedule.window}"
    script = "".join(render_all(layout, site, JOB).values())
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    text = "\n".join([trained, *lines, *directives]) + "\n"
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("HPCRL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_published_hyper_parameters():
    recipe = build("justrl")
    trainer, schedule = recipe.groups["trainer"].role, recipe.schedule
    assert (schedule.prompts_per_step, schedule.samples_per_prompt) == (256, 8)
    assert schedule.prompts_per_step // trainer.minibatches == 64
    assert (trainer.lr, trainer.lr_schedule, trainer.clip_low, trainer.clip_high) == (1e-6, "constant", 0.2, 0.28)
    assert recipe.groups["rollout"].role.sampling.max_new_tokens == 15_360
    assert recipe.groups["inference"].role.max_context == trainer.context == 16_384


@pytest.mark.parametrize(
    ("name", "nodes", "gpus", "sets", "said"),
    [
        ("justrl_fully_async", 1, 1, (), "1 GPU apart would be 0 for training and 1 for engines"),
        ("justrl", 1, 4, ("tensor_parallel=3",), "4 GPUs for generation cannot be engines of tensor_parallel 3 GPUs each"),
        ("justrl", 1, 4, ("trainer_gpus=2",), "goes with placement apart; colocated, all 4 GPUs train in turn"),
        ("justrl", 16, 8, ("prompts_per_step=32",), "128 GPUs would train on mini-batches of 64 samples"),
    ],
)
def test_sizes_that_make_no_sense_are_told(name: str, nodes: int, gpus: int, sets: tuple[str, ...], said: str):
    with pytest.raises(CheckFailed, match=said):
        build(name, nodes, gpus, sets)


def test_hpcrl_plan_rescales_it():
    asked = [str(RECIPES / "justrl_fully_async.py"), "--nodes", "2", "--gpus-per-node", "4", "--json"]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0, done.output
    plan = Plan.from_json(done.stdout)
    assert [len(plan.of_group(name)) for name in ("trainer", "inference")] == [4, 4]
    done = CliRunner().invoke(command, [asked[0], "--nodes", "1", "--gpus-per-node", "1"])
    assert done.exit_code == 2
    assert "1 GPU apart would be" in done.stderr


def test_a_size_that_is_set_goes_before_that_of_the_command_line():
    assert build("justrl", 4, 8, ("nodes=1", "gpus_per_node=2")).groups["trainer"].replicas == 2


def test_the_problem_is_taken_out_of_what_dapo_has_around_it():
    dataset = build("justrl").groups["rollout"].role.dataset
    assert isinstance(dataset, Records)
    around = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
        "(without quotes) where $Answer is the answer to the problem.\n\nWhat is\n\n$1+1$?\n\nRemember to put your answer on "
        'its own line after "Answer:".'
    )
    wanted = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    for text, problem in ((around, "What is\n\n$1+1$?"), ("What is $2+2$?", "What is $2+2$?")):
        assert dataset._text(text) == problem + wanted


REWARD = """
def share(response, item):
    return sum(letter in "aeiou" for letter in response) / max(1, len(response))
"""


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("justrl")
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}+{n}?"}], "reward_model": {"ground_truth": str(2 * n)}} for n in range(12)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (folder / "share.py").write_text(REWARD)
    return {
        "model": tiny_model,
        "data": folder / "train.jsonl",
        "engine": "embedded",
        "gpus_per_node": 0,
        "steps": 3,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "max_prompt_tokens": 150,
        "max_new_tokens": 12,
        "minibatches": 2,
        "cpus": 1,
        "reward_cpus": 1,
        "tokens_per_microbatch": 512,
        "lr": 1e-3,
        "reward.function": f"{folder / 'share.py'}:share",
        "trainer.preflight": True,
    }


@pytest.fixture
def run(tmp_path: Path, own_threads: None) -> Callable[..., list[dict[str, Any]]]:
    def call(name: str, **sets: Any) -> list[dict[str, Any]]:
        """Journal records of the trainer, after a run in this process."""
        from hpcrl.cli.main import main
        from hpcrl.tracking.journal import JournalReader

        options = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        printed, before, code = io.StringIO(), sys.argv, 0
        path = RECIPES / f"{name}.py"
        sys.argv = ["hpcrl", "run", str(path), "--run-dir", str(tmp_path / "run"), "--in-process", *options]
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.argv = before
        assert code == 0, printed.getvalue()
        return [record for _, record in JournalReader(tmp_path / "run" / "latest" / "journal").read()]

    return call


@pytest.mark.slow
@pytest.mark.parametrize("name", ["justrl", "justrl_async", "justrl_fully_async"])
def test_it_runs_on_a_cpu(name: str, run: Callable[..., list[dict[str, Any]]], small: dict[str, Any]):
    records = run(name, **small)
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert sorted(itertools.chain.from_iterable(step["prompts"] for step in steps)) == list(range(12))
    assert {step["updates"] for step in steps} == {2}
    assert max(step["version_lag_max"] for step in steps) <= {"justrl": 0, "justrl_async": 1}.get(name, 4)
    (tried,) = [record for record in records if record["kind"] == "preflight"]
    assert tried["longest"] == 162
