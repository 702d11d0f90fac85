"""The tiny recipe with its engine and its trainer, and a role of a person's own, on cores that they use in turn by a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from tiny_recipe import recipe as tiny  # beside this file

from hpcrl.recipe import ColocationRing, Recipe, Role, RoleGroup
from hpcrl.roles.context import RoleContext
from hpcrl.roles.feedback import POLICY
from hpcrl.roles.turns import Turns


@dataclass(frozen=True, kw_only=True)
class Evaluator(Role):
    """A person's own role: takes a turn for every newest version that it sees.

    Attributes:
        every: versions between two looks.
        seconds: that each look takes.
    """

    takes_turns: ClassVar[bool] = True

    every: int = 1
    seconds: float = 0.0

    def listens(self) -> tuple[str, ...]:
        return (POLICY,)

    def run(self, context: RoleContext) -> None:
        turns, version, last = Turns(context), -self.every, context.recipe.schedule.steps
        while version + self.every <= last:
            look = partial(newer, than=version + self.every - 1)
            version = context.wait_feedback(POLICY, look, f"a version after {version}")
            with turns.turn(step=version) as turn:
                context.phase("evaluation", step=version)
                if context.stop.sleep(self.seconds):
                    context.raise_if_stopped()
                found = -1 if turn.found is None else turn.found["version"]
                context.journal.write("metrics", step=version, found=found, epoch=turn.epoch)


def newer(newest: Mapping[str, Mapping[str, Any]], than: int) -> int | None:
    version = max((int(policy["version"]) for policy in newest.values()), default=-1)
    return version if version > than else None


def recipe(
    model: str,
    data: str,
    steps: int = 3,
    window: int | None = 1,
    ranks: int = 1,
    replicas: int = 1,
    token: bool = True,
    evaluator: bool = False,
) -> Recipe:
    """See :func:`tiny_recipe.recipe`.

    Args:
        token: there is one; without, all have their memory at the same time.
        evaluator: is the third member.
    """
    made = tiny(model, data, steps=steps, window=window, ranks=ranks, replicas=replicas)
    groups = dict(made.groups)
    members: tuple[str, ...] = ("inference", "trainer")
    if evaluator:
        groups["evaluator"] = RoleGroup(role=Evaluator())
        members += ("evaluator",)
    ring = ColocationRing(name="cores", members=members, fallback="inference" if token else "")
    return replace(made, groups=groups, rings=(ring,))
