from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.interface import DataPlaneError, SchemaError
from hpcrl.dataplane.member import Member, encode_value
from hpcrl.recipe import Recipe


@pytest.fixture
def recipe(make_bench: Any) -> Recipe:
    return make_bench("memory").recipe


def member(recipe: Recipe, group: str, rank: int = 0) -> Member:
    return Member(recipe=recipe, group=group, rank=rank, processes={"make": 2, "score": 3, "judge": 1, "train": 1, "watch": 1})


def test_processes_of_all_groups_number_their_rows_apart(recipe):
    everyone = [member(recipe, g, r) for g, n in member(recipe, "make").processes.items() for r in range(n)]
    assert len({int(one.row_ids().take(1)[0]) for one in everyone}) == 8


def test_a_fill_must_hold_one_whole_promise(recipe):
    name = recipe.streams[0].name
    assert [c.name for c in member(recipe, "score").check_fill(name, {"reward": np.zeros(2, np.float32)}, 2)] == ["reward"]
    with pytest.raises(SchemaError, match="column 'note' is not one of the expected"):
        member(recipe, "score").check_fill(name, {"note": ["a"]}, 1)


def test_rights_follow_the_contract(recipe):
    name = recipe.streams[0].name
    member(recipe, "train").check_clear(name)
    with pytest.raises(DataPlaneError, match="'watch' may not clear"):
        member(recipe, "watch").check_clear(name)
    member(recipe, "judge").check_close(name)
    with pytest.raises(SchemaError, match="'watch' may not close"):
        member(recipe, "watch").check_close(name)
    with pytest.raises(SchemaError, match="at least one column"):
        member(recipe, "watch").check_read(name, [], 100)


def test_a_process_that_is_not_in_the_recipe_is_refused(recipe):
    with pytest.raises(ValueError, match=r"make\.2 is no process"):
        member(recipe, "make", 2)
    with pytest.raises(ValueError, match="no number for groups"):
        Member(recipe=recipe, group="make", rank=0, processes={"make": 1})


@pytest.mark.parametrize("value", [[1], {"a": {1, 2}}, {"a": np.float32(1)}])
def test_values_that_are_not_json_are_refused(value):
    with pytest.raises(SchemaError, match="JSON-like"):
        encode_value("gate", value)
