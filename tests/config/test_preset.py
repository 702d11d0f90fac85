from __future__ import annotations

import inspect

import pytest

from hpcrl.config.override import build_recipe
from hpcrl.config.preset import preset
from hpcrl.run.errors import CheckFailed

BASE = """
from __future__ import annotations
from hpcrl.recipe import Recipe, Schedule

def recipe(name: str = "x", steps: int = 1, *, nodes: int = 1) -> Recipe:
    return Recipe(
        name=name, groups={}, streams=(), schedule=Schedule(steps=steps, prompts_per_step=nodes, samples_per_prompt=1)
    )
"""
OTHER = """
from base import recipe as base
from hpcrl.config.preset import preset

recipe = preset(base, name="other", nodes=3)
"""


def sized(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
    """Three numbers."""
    return a, b, c


def test_defaults_change_and_nothing_else():
    made = preset(sized, b=5, c=6)
    assert made(1) == (1, 5, 6)
    assert made(1, 2, c=3) == (1, 2, 3) == sized(1)
    assert str(inspect.signature(made)) == "(a: 'int', b: 'int' = 5, *, c: 'int' = 6) -> 'tuple[int, int, int]'"
    assert (made.__doc__, preset(sized, "Others.").__doc__) == ("Three numbers.", "Others.")
    assert preset(sized, a=0)() == (0, 2, 3)


def test_a_default_of_no_parameter_is_refused():
    with pytest.raises(TypeError, match=r"sized\(\) has no parameter 'd'"):
        preset(sized, d=1)


def test_a_recipe_file_may_be_another_with_other_defaults(tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    other = tmp_path / "other.py"
    other.write_text(OTHER)
    made = build_recipe(other, ["steps=7"])
    assert (made.name, made.schedule.steps, made.schedule.prompts_per_step) == ("other", 7, 3)
    with pytest.raises(CheckFailed, match="stepps"):
        build_recipe(other, ["stepps=7"])


def test_the_clusters_size_goes_to_parameters_of_that_name(tmp_path):
    path = tmp_path / "base.py"
    path.write_text(BASE)
    size = {"nodes": 5, "gpus_per_node": 8}
    assert build_recipe(path, size=size).schedule.prompts_per_step == 5
    assert build_recipe(path, ["nodes=2"], size=size).schedule.prompts_per_step == 2
    assert build_recipe(path, size={"nodes": None}).schedule.prompts_per_step == 1
