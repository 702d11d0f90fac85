"""How policy weights get to each engine of a run."""

from __future__ import annotations

import logging

from hpcrl.plan.plan import Plan
from hpcrl.plan.ways import Way, plan_ways
from hpcrl.recipe import Recipe

log = logging.getLogger(__name__)


def log_ways(recipe: Recipe, plan: Plan) -> dict[str, Way]:
    """By engine process, the way that the plan gives it; logged with the reason."""
    nodes = {group: [process.node for process in plan.of_group(group)] for group in recipe.groups}
    choices = plan_ways(recipe, nodes, [process.name for process in plan.processes if process.parts > 1])
    for name, choice in choices.items():
        log.info("weights to %s by %s: %s", name, choice.way, choice.why)
    return {name: choice.way for name, choice in choices.items()}
