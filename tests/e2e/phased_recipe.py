"""The tiny recipe with roles that stay in a phase until they are interrupted, as long compiles, evaluations and saves do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from tiny_recipe import recipe as tiny  # beside this file

from hpcrl.recipe import Recipe, Role, RoleGroup
from hpcrl.roles.context import RoleContext
from hpcrl.roles.feedback import POLICY
from hpcrl.roles.trainer import Trainer

# Longer than any test waits.
STAY_S = 300.0


@dataclass
class StayingContext(RoleContext):
    """Stays in a phase, or in that of a step (``PHASE@STEP``), the first time that it comes, until the stop."""

    stays: str = ""

    def phase(self, name: str, step: int | None = None, **figures: Any) -> None:
        super().phase(name, step, **figures)
        if self.stays in (name, f"{name}@{step}"):
            self.stays = ""
            self.stop.sleep(STAY_S)


def stay_of(context: RoleContext, stays: tuple[str, ...]) -> str:
    """The phase to stay in in this attempt."""
    number = context.attempt.number
    return stays[number - 1] if number <= len(stays) else ""


@dataclass(frozen=True, kw_only=True)
class StayingTrainer(Trainer):
    """Stays in one of its own phases.

    Attributes:
        stays: of each attempt in turn; empty = none.
    """

    stays: tuple[str, ...] = ()

    def run(self, context: RoleContext) -> None:
        given = {field.name: getattr(context, field.name) for field in fields(context)}
        super().run(StayingContext(**given, stays=stay_of(context, self.stays)))


@dataclass(frozen=True, kw_only=True)
class Evaluator(Role):
    """A person's own role: looks at each newest version, having compiled something first, and is deaf meanwhile."""

    stays: tuple[str, ...] = ()

    def listens(self) -> tuple[str, ...]:
        return (POLICY,)

    def run(self, context: RoleContext) -> None:
        stays, version = stay_of(context, self.stays), -1
        context.phase("compile")
        if stays == "compile":
            time.sleep(STAY_S)
        while version < context.recipe.schedule.steps:
            version = context.wait_feedback(POLICY, partial(newer, than=version), f"a version after {version}")
            context.phase("evaluation", step=version)
            if stays == "evaluation" and context.stop.sleep(STAY_S):
                context.raise_if_stopped()
            context.journal.write("metrics", step=version, evaluated=version)


def newer(newest: Mapping[str, Mapping[str, Any]], than: int) -> int | None:
    version = max((int(policy["version"]) for policy in newest.values()), default=-1)
    return version if version > than else None


def recipe(
    model: str, data: str, steps: int = 40, trainer_stays: tuple[str, ...] = (), evaluator_stays: tuple[str, ...] = ()
) -> Recipe:
    """One batch ahead, saved every tenth step too."""
    made = tiny(model, data, steps=steps, window=2)
    group = made.groups["trainer"]
    settings = {field.name: getattr(group.role, field.name) for field in fields(group.role)}
    trainer = StayingTrainer(**{**settings, "save_every": 10, "stays": trainer_stays})
    return replace(
        made,
        groups={
            **made.groups,
            "trainer": replace(group, role=trainer),
            "evaluator": RoleGroup(role=Evaluator(stays=evaluator_stays)),
        },
        # Whoever stays is waited for.
        limits=replace(made.limits, drain_s=20.0, wait_s=STAY_S),
    )
