from __future__ import annotations

import pytest

from hpcrl.config.changes import changed_recipe
from hpcrl.recipe import Column, Recipe, Resources, Role, RoleGroup, Schedule, Stream
from hpcrl.run.errors import CheckFailed

RECIPE = Recipe(
    name="x",
    groups={"trainer": RoleGroup(role=Role(), resources=Resources(gpus=4))},
    streams=(Stream(name="rows", columns=(Column(name="n", dtype="int64"),)),),
    schedule=Schedule(steps=10, prompts_per_step=4, samples_per_prompt=2),
)


def problems(*sets: str, trained: int = 6) -> list[str]:
    with pytest.raises(CheckFailed) as caught:
        changed_recipe(RECIPE, sets, trained=trained)
    return list(caught.value.problems)


def test_fields_change_and_the_rest_stays():
    changed = changed_recipe(
        RECIPE, ["trainer.gpus=2", "schedule.steps=7", "limits.drain_s=30", "trainer.replicas=3"], trained=6
    )
    assert changed.groups["trainer"].resources.gpus == 2
    assert changed.groups["trainer"].replicas == 3
    assert (changed.schedule.steps, changed.schedule.prompts_per_step, changed.limits.drain_s) == (7, 4, 30.0)
    assert changed.streams == RECIPE.streams
    assert changed_recipe(RECIPE, []) == RECIPE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("schedule.prompts_per_step=8", "counted in steps"),
        ("schedule.samples_per_prompt=8", "counted in steps"),
        ("seed=1", "order of its prompts"),
        ("streams.rows.block_rows=8", "the rows that it has kept"),
        ("schedule.steps=6", "has saved step 6"),
    ],
)
def test_what_the_saves_do_not_go_with_is_refused(change: str, why: str):
    (problem,) = problems(change)
    assert change.partition("=")[0].partition(".rows")[0] in problem
    assert why in problem


def test_everything_that_is_wrong_is_said_at_once():
    found = problems("seed=1", "schedule.steps=2", "trainer.gpu=2", "limits.drain_s=long")
    assert len(found) == 4
    assert any("did you mean" in problem or "gpus" in problem for problem in found)


def test_a_finished_run_may_stay_as_it_is():
    assert changed_recipe(RECIPE, ["trainer.gpus=1"], trained=10).schedule.steps == 10
