from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrl.launch.earlier import earlier_pace, same_work
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.pace import PART_BYTES, Pace, measure, pace_of
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.journal import Journal


def step(t: float, step_s: float = 10.0) -> dict[str, Any]:
    return {"t": t, "kind": "step", "step_s": step_s}


def phase(t: float, name: str) -> dict[str, Any]:
    return {"t": t, "kind": "phase", "name": name}


def test_start_step_and_save_are_told_apart():
    records = [phase(5, "load"), phase(40, "collect"), step(75, 30), phase(76, "checkpoint"), phase(80, "collect"), step(90)]
    records += [step(100), phase(100, "checkpoint"), phase(102, "collect"), step(112), phase(112, "checkpoint")]
    assert measure(records, records, began=0.0, run="a") == Pace(run="a", steps=4, step_s=10.0, start_s=65.0, save_s=3.0)
    assert measure(records, records, began=None, run="a") == Pace(run="a", steps=4, step_s=10.0, start_s=60.0, save_s=3.0)


@pytest.mark.parametrize(
    "records", [[], [phase(1, "load")], [{"kind": "step"}], [{"t": 1, "kind": "step", "step_s": None}], [step(1, 0)]]
)
def test_no_step_is_no_pace(records: list[dict[str, Any]]):
    assert measure(records, records, began=0.0, run="a") is None


def test_the_newest_attempt_with_a_step_counts(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "r", name="r", recipe_json="{}")
    assert pace_of(run, ["trainer"]) is None
    for seconds in (7.0, 9.0):
        Journal(run.new_attempt().journal / "trainer.0.jsonl").write("step", step=1, step_s=seconds)
    Journal(run.new_attempt().journal / "trainer.0.jsonl").write("phase", name="load")
    pace = pace_of(run, ["rollout", "trainer"])
    assert pace is not None
    assert (pace.step_s, pace.steps) == (9.0, 1)
    assert pace_of(run, ["rollout"]) is None


def test_a_long_journal_is_read_at_its_ends(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "r", name="r", recipe_json="{}")
    attempt = run.new_attempt()
    (attempt.path / "slurm.json").write_text(json.dumps({"t": time.time() - 500}))
    journal = Journal(attempt.journal / "trainer.0.jsonl")
    for number in range(2000):
        journal.write("step", step=number, step_s=100.0 if number < 1000 else 2.0, filler="x" * 100)
    with open(attempt.journal / "trainer.0.jsonl", "ab") as file:
        file.write(b'{"t": 1, "kind": "st')
    pace = pace_of(run, ["trainer"])
    assert pace is not None
    assert pace.step_s == 2.0
    assert 100 < pace.steps < PART_BYTES / 100
    assert 497 <= pace.start_s < 560


RECIPE: dict[str, Any] = {
    "name": "grpo",
    "groups": {"trainer": {"role": {"lr": 1e-5, "betas": [0.9, 0.95], "save_every": 0, "minibatches": 1}}},
    "schedule": {"steps": 20, "prompts_per_step": 8},
    "limits": {"drain_s": 120.0},
    "seed": 0,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(RECIPE))
    *parents, leaf = path.split(".")
    place = copy
    for name in parents:
        place = place[name]
    place[leaf] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        ("seed", 1, True),
        ("name", "other", True),
        ("schedule.steps", 500, True),
        ("limits.drain_s", 300, True),
        ("groups.trainer.role.lr", 2e-5, True),
        ("groups.trainer.role.betas", [0.9, 0.99], True),
        ("groups.trainer.role.save_every", 5, True),
        ("groups.trainer.role.minibatches", 2, False),
        ("groups.trainer.role.betas", [1, 2], False),
        ("groups.trainer.role.more", 1.0, False),
        ("schedule.prompts_per_step", 16, False),
    ],
)
def test_what_costs_the_same(path: str, value: Any, same: bool):
    assert same_work(RECIPE, changed(path, value)) == same


def layout(nodes: int = 2, gpus: int = 4, spares: int = 0) -> Layout:
    component = Component(
        name="all",
        groups=("trainer",),
        nodes=nodes,
        gpus_per_node=gpus,
        cpus_per_node=4,
        memory_gib=0,
        partition="p",
        spares=spares,
    )
    return Layout(components=(component,), no_kill=False, minutes=60)


def past(
    root: Path, name: str, step_s: float, *, recipe: dict[str, Any] = RECIPE, held: Layout | None = None, site="s"
) -> None:
    run = RunDirectory.create(root / name, name=name, recipe_json=json.dumps(recipe))
    (run.path / "site.json").write_text(json.dumps({"name": site}))
    (run.path / "layout.json").write_text((held or layout()).to_json())
    if step_s:
        Journal(run.new_attempt().journal / "trainer.0.jsonl").write("step", step=1, step_s=step_s)


def found(root: Path, *names: str) -> Pace | None:
    return earlier_pace(root, names or ("grpo",), RECIPE, layout(), "s")


def dated(root: Path) -> None:
    """Each run as old as the folder says that it was made before the others."""
    for age, path in enumerate(sorted(root.iterdir())):
        os.utime(path, (1000 + age, 1000 + age))


def test_the_newest_comparable_run_is_taken(tmp_path: Path):
    assert found(tmp_path / "nowhere") is None
    past(tmp_path, "grpo-1", 1.0)
    past(tmp_path, "grpo-2", 2.0, recipe=changed("seed", 3))
    past(tmp_path, "grpo-3", 3.0, recipe=changed("schedule.prompts_per_step", 16))
    past(tmp_path, "grpo-4", 4.0, held=layout(nodes=3))
    past(tmp_path, "grpo-5", 5.0, held=layout(gpus=2))
    past(tmp_path, "grpo-6", 6.0, site="other")
    past(tmp_path, "grpo-7", 0.0)
    past(tmp_path, "other-8", 8.0)
    (tmp_path / "grpo-9").mkdir()
    dated(tmp_path)
    pace = found(tmp_path)
    assert pace is not None
    assert (pace.run, pace.step_s) == ("grpo-2", 2.0)


def test_spares_make_no_difference(tmp_path: Path):
    past(tmp_path, "grpo-1", 1.0, held=layout(nodes=3, spares=1))
    assert found(tmp_path) is not None


def test_runs_of_other_names_are_looked_at_where_none_has_the_recipes(tmp_path: Path):
    past(tmp_path, "first-try", 1.0)
    assert found(tmp_path, "grpo") is not None
    past(tmp_path, "grpo-1", 0.0)
    assert found(tmp_path, "grpo") is None


def test_a_folder_of_many_runs_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(30):
        past(tmp_path, f"grpo-{number:02}", 0.0)
    opened = []
    real = Path.read_text

    def counted(path: Path, *arguments: Any, **options: Any) -> str:
        opened.append(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    assert found(tmp_path) is None
    assert len(opened) <= 8 * 4
