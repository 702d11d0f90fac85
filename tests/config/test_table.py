from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from hpcrl.config.table import read_table


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int = 1
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str = ""
    yes: bool = False
    kind: Literal["a", "b"] = "a"
    items: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def test_every_type_is_read():
    problems: list[str] = []
    table = {"name": "x", "yes": True, "kind": "b", "items": ["p"], "texts": {"k": "v"}, "inner": {"share": 2}}
    found = read_table(Outer, table, problems)
    assert found == Outer(name="x", yes=True, kind="b", items=("p",), texts={"k": "v"}, inner=Inner(share=2.0))
    assert isinstance(found.inner.share, float)
    assert not problems


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"nme": 1}, "nme: there is no such key; nearest: name"),
        ({"inner": {"cont": 1}}, "inner.cont: there is no such key; nearest: count"),
        ({"name": 1}, "name: it must be text in quotes"),
        ({"yes": 1}, "yes: it must be true or false and is 1"),
        ({"kind": "c"}, "kind: it must be one of a, b and is 'c'"),
        ({"items": "p"}, "items: it must be a list of texts"),
        ({"items": [1]}, "items: it must be a list of texts"),
        ({"texts": {"k": 1}}, "texts: it must be a table of texts"),
        ({"inner": {"count": True}}, "inner.count: it must be a whole number and is True"),
        ({"inner": {"share": "x"}}, "inner.share: it must be a number"),
        ({"inner": 3}, "inner: it must be a table"),
    ],
)
def test_what_does_not_fit_is_told_and_keeps_its_default(table, says):
    problems: list[str] = []
    assert read_table(Outer, table, problems) == Outer()
    assert len(problems) == 1
    assert says in problems[0]
