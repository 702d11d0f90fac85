from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.config.codec import recipe_from_json, recipe_from_run, recipe_to_json
from hpcrl.recipe import ColocationRing, Column, FeedbackStream, Recipe, Resources, Role, RoleGroup, Schedule, Stream
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class Inner:
    values: tuple[float, ...] = (1.0, math.inf)
    nested: tuple[tuple[int, ...], ...] = ((), (1,))


@dataclass(frozen=True, kw_only=True)
class Holder(Role):
    anything: Any = None
    inner: Inner | None = field(default_factory=Inner)
    options: Mapping[Any, Any] = field(default_factory=dict)


class Color(enum.Enum):
    RED = 1


def make(anything: Any = None, **more: Any) -> Recipe:
    return Recipe(
        name="x",
        groups={"b": RoleGroup(role=Holder(anything=anything, **more), after=("a",)), "a": RoleGroup(role=Holder(inner=None))},
        streams=(Stream(name="s", columns=(Column(name="c", dtype="str"),)),),
        feedback=(FeedbackStream(name="gate"),),
        rings=(ColocationRing(name="r", members=("a", "b")),),
        schedule=Schedule(steps=1, prompts_per_step=2, samples_per_prompt=3, window=None),
        seed=5,
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.builds(Path, st.just("/a/b")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.just("$type"), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    # == takes 1 for True and 1.0, which is not an exact round trip.
    return a == b and repr(a) == repr(b)


@given(VALUES)
def test_any_value_comes_back_exactly(value):
    recipe = make(value, options={"k": value})
    text = recipe_to_json(recipe)
    back = recipe_from_json(text)
    assert same(back, recipe)
    assert recipe_to_json(back) == text


def test_groups_keep_their_order_and_types_their_names():
    text = recipe_to_json(make())
    assert list(recipe_from_json(text).groups) == ["b", "a"]
    assert json.loads(text)["$type"] == "hpcrl.recipe:Recipe"
    assert text.endswith("}\n")


def test_a_field_that_the_text_lacks_takes_its_default():
    value = json.loads(recipe_to_json(make()))
    del value["limits"]
    assert recipe_from_json(json.dumps(value)) == make()


def test_everything_that_cannot_be_written_is_named():
    with pytest.raises(CheckFailed) as error:
        recipe_to_json(make(anything=object(), options={"f": print, "c": Color.RED}))
    assert len(error.value.problems) == 3
    assert "recipe.groups.b.role.anything" in str(error.value)
    assert "module:function" in str(error.value)


def test_a_class_that_others_cannot_find_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Hidden(Role):
        pass

    recipe = dataclasses.replace(make(), groups={"a": RoleGroup(role=Hidden())})
    with pytest.raises(CheckFailed, match="cannot be found by other processes"):
        recipe_to_json(recipe)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"seed"', '"sed"', "has no field 'sed'; nearest: seed"),
        (":Holder", ":Holdr", "unknown type"),
        ("hpcrl.recipe:Stream", "no_such_module:Stream", "No module named 'no_such_module'"),
        ("hpcrl.recipe:Stream", "json:JSONDecoder", "it is no dataclass"),
        ('"steps": 1,', "", "recipe.schedule: hpcrl.recipe:Schedule cannot be made"),
        ('"seed": 5', '"seed": {"$what": 1}', "unknown tag $what"),
        ('"seed": 5', '"seed": ', "is not JSON"),
    ],
)
def test_text_that_does_not_fit_is_refused(old, new, says):
    text = recipe_to_json(make())
    assert old in text
    with pytest.raises(CheckFailed) as error:
        recipe_from_json(text.replace(old, new), "RUN/recipe.json")
    assert says in str(error.value)
    assert "RUN/recipe.json" in str(error.value)


def test_json_of_another_thing_is_refused():
    with pytest.raises(CheckFailed, match="not a Recipe"):
        recipe_from_json('{"$type": "hpcrl.recipe:Resources"}')
    assert recipe_from_json(recipe_to_json(make())).groups["a"].resources == Resources()


def test_a_run_brings_the_classes_of_its_recipe_file(tmp_path):
    from hpcrl.config.override import build_recipe

    source = tmp_path / "mine.py"
    source.write_text(
        "from dataclasses import dataclass\n"
        "from hpcrl.recipe import *\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Role):\n    lr: float = 0.5\n"
        "def recipe() -> Recipe:\n    return Recipe(name='x', groups={'a': RoleGroup(role=Mine(lr=0.25))}, streams=(),\n"
        "        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1))\n"
    )
    text = recipe_to_json(build_recipe(source))
    run = RunDirectory.create(tmp_path / "run", name="x", recipe_json=text, sources={"recipe.py": source})
    source.unlink()
    recipe = recipe_from_run(run)
    role = recipe.groups["a"].role
    assert (type(role).__module__, type(role).__name__, role.lr) == ("hpcrl_recipe", "Mine", 0.25)  # type: ignore[attr-defined]
    assert recipe_to_json(recipe) == text
