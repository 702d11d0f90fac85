from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from hpcrl.config.values import describe, is_supported, parse


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", int, 3),
        ("65_536", int, 65536),
        ("1e-6", float, 1e-6),
        ("3", float, 3.0),
        ("inf", float, math.inf),
        ("True", bool, True),
        ("no", bool, False),
        ("a=b", str, "a=b"),
        ("", str, ""),
        ("none", int | None, None),
        ("2", int | None, 2),
        ("2", str | int, 2),
        ("two", str | int, "two"),
        ("adamw", Literal["adamw", "sgd"], "adamw"),
        ("2", Literal[1, 2], 2),
        ("1,2,3", tuple[int, ...], (1, 2, 3)),
        ("(1,)", tuple[int, ...], (1,)),
        ("[]", tuple[int, ...], ()),
        ("0.9, 0.95", tuple[float, float], (0.9, 0.95)),
        ("[a, b]", list[str], ["a", "b"]),
        ("/data/x", Path, Path("/data/x")),
    ],
)
def test_text_becomes_a_value_of_the_type(text, kind, value):
    assert is_supported(kind)
    read = parse(text, kind)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.5", int),
        ("nan", float),
        ("maybe", bool),
        ("2", bool),
        ("lion", Literal["adamw", "sgd"]),
        ("1,x", tuple[int, ...]),
        ("1", tuple[float, float]),
        ("none", int),
        ("x", int | None),
    ],
)
def test_other_text_is_refused(text, kind):
    with pytest.raises(ValueError, match=r".*"):
        parse(text, kind)


@pytest.mark.parametrize("kind", [bytes, dict[str, int], Mapping[str, str], tuple, list[bytes], object])
def test_types_that_text_cannot_give_are_known(kind):
    assert not is_supported(kind)


def test_types_are_described_as_a_person_writes_them():
    assert describe(int | None) == "int | None"
    assert describe(Literal["a", "b"]) == "one of a, b"
    assert describe(tuple[int, ...]) == "tuple[int, ...]"
