from __future__ import annotations

import pytest

from hpcrl.config.diff import diff, read_resolved
from hpcrl.run.errors import CheckFailed


def paths(a, b):
    return [(item.path, item.kind) for item in diff(a, b)]


def test_equal_values_differ_nowhere():
    value = {"a": [1, {"name": "x", "v": None}], "b": {"c": 1.5}}
    assert diff(value, value) == ()


def test_changed_and_only_on_one_side():
    a = {"schedule": {"steps": 1, "window": 1}, "x": 1}
    b = {"schedule": {"steps": 2, "window": 1}, "y": {"z": 1}}
    assert paths(a, b) == [("schedule.steps", "changed"), ("x", "only in A"), ("y", "only in B")]
    assert (diff(a, b)[0].a, diff(a, b)[0].b) == (1, 2)


def test_named_items_are_matched_by_name():
    a = [{"name": "s", "rows": 1}, {"name": "t", "rows": 2}]
    b = [{"name": "t", "rows": 3}]
    assert paths({"streams": a}, {"streams": b}) == [("streams.s", "only in A"), ("streams.t.rows", "changed")]


def test_another_order_of_named_items_is_a_difference():
    a = [{"name": "s"}, {"name": "t"}]
    assert paths({"streams": a}, {"streams": a[::-1]}) == [("streams (order)", "changed")]


def test_an_array_of_plain_values_is_one_value_and_other_items_go_by_position():
    assert paths({"m": [1, 2]}, {"m": [1, 3]}) == [("m", "changed")]
    assert paths({"m": [{"v": 1}]}, {"m": [{"v": 2}, {"v": 3}]}) == [("m.0.v", "changed"), ("m.1", "only in B")]


def test_none_and_types_are_told_apart():
    assert paths({"a": 1}, {"a": None}) == [("a", "changed")]
    assert paths({"a": 1}, {"a": True}) == [("a", "changed")]
    assert paths({"a": None}, {}) == [("a", "only in A")]


def test_a_run_directory_or_a_file_is_read(tmp_path):
    (tmp_path / "recipe.json").write_text('{"a": 1}')
    assert read_resolved(tmp_path) == read_resolved(tmp_path / "recipe.json") == {"a": 1}
    with pytest.raises(CheckFailed, match="no resolved recipe can be read"):
        read_resolved(tmp_path / "nothing")
