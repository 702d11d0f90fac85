"""A recipe of so many groups that do nothing: what ``submit.py`` has a supervisor look after."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.recipe import Limits, Recipe, Resources, Role, RoleGroup, Schedule


@dataclass(frozen=True, kw_only=True)
class Nothing(Role):
    pass


def recipe(slices: int = 8, each: int = 8) -> Recipe:
    """So many groups, each a component of its own, of so many processes."""
    return Recipe(
        name="slices",
        groups={f"g{index}": RoleGroup(role=Nothing(), replicas=each, resources=Resources(gpus=1)) for index in range(slices)},
        streams=(),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
        limits=Limits(start_s=900),
    )
