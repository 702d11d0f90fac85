"""How long a sample of a recipe may become. Light, so that a check can ask too."""

from __future__ import annotations

from hpcrl.recipe import Recipe
from hpcrl.roles.inference import Inference


def longest_sample(recipe: Recipe) -> int:
    """Tokens of prompt and response: the longest context of its engines; 0 where it has none."""
    return max((group.role.max_context for group in recipe.groups.values() if isinstance(group.role, Inference)), default=0)
