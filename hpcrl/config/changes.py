"""Changes to the recipe of a run that goes on; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrl.config.override import override_fields, split_sets
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed

_SCHEDULE = ("prompts_per_step", "samples_per_prompt")


def changed_recipe(recipe: Recipe, sets: Sequence[str], *, trained: int = 0) -> Recipe:
    """The recipe of a run with fields overridden, as those of a built recipe are.

    Args:
        sets: ``name=value`` each; fields alone, since what ``recipe()`` made of its parameters is settled.
        trained: steps that the run's newest save holds.

    Raises:
        CheckFailed: every bad override, and every change that what the run has saved does not go with.
    """
    texts, problems = split_sets(sets)
    changed = override_fields(recipe, texts, (), problems)
    problems += _kept(recipe, changed, trained)
    if problems:
        raise CheckFailed(problems)
    return changed


def _kept(before: Recipe, after: Recipe, trained: int) -> Iterator[str]:
    for name in _SCHEDULE:
        if getattr(before.schedule, name) != getattr(after.schedule, name):
            yield f"--set schedule.{name}: a run cannot change it, as its data are counted in steps of so many; begin a new run"
    if before.seed != after.seed:
        yield "--set seed: a run cannot change it, as the order of its prompts comes from it; begin a new run"
    if before.streams != after.streams:
        yield "--set streams: a run cannot change them, as it goes on with the rows that it has kept; begin a new run"
    if before.schedule.steps != after.schedule.steps and after.schedule.steps <= trained:
        yield f"--set schedule.steps={after.schedule.steps}: the run has saved step {trained}, so nothing is left to train"
