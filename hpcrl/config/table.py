"""Read a frozen dataclass from a table such as TOML gives: every key and type checked, every problem reported at once."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from hpcrl.config.fields import hints
from hpcrl.config.nearest import nearest
from hpcrl.config.values import describe


def read_table(kind: type, table: Mapping[str, Any], problems: list[str], path: str = "") -> Any:
    """The dataclass that a table describes; keys that the table lacks take their defaults.

    Fields may be str, int, float, bool, Literal, ``tuple[str, ...]``, ``Mapping[str, str]`` and further dataclasses.

    Args:
        problems: takes a sentence for each unknown key and each value of a wrong type; those keep their defaults.
        path: keys that lead to this table, as errors name it.
    """
    known = hints(kind)
    values = {}
    for key, value in table.items():
        name = f"{path}{key}"
        if key not in known:
            problems.append(f"{name}: there is no such key; {nearest(key, known)}")
            continue
        wanted = known[key]
        if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
            if isinstance(value, Mapping):
                values[key] = read_table(wanted, value, problems, f"{name}.")
            else:
                problems.append(f"{name}: it must be a table, [{name}], and is {value!r}")
            continue
        fitting = _fit(value, wanted)
        if fitting is None:
            problems.append(f"{name}: it must be {_said(wanted)} and is {value!r}")
        else:
            values[key] = fitting
    return kind(**values)


def _fit(value: Any, wanted: Any) -> Any:
    """The value as the type has it, or None: TOML has no null, so None is never a value."""
    origin = typing.get_origin(wanted)
    if origin is Literal:
        return value if value in typing.get_args(wanted) else None
    if origin is tuple:
        is_texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        return tuple(value) if is_texts else None
    if origin is not None and issubclass(origin, Mapping):
        is_map = isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())
        return dict(value) if is_map else None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # A bool is an int to Python.
    return value if type(value) is wanted else None


def _said(wanted: Any) -> str:
    origin = typing.get_origin(wanted)
    if origin is tuple:
        return 'a list of texts, ["a", "b"]'
    if origin is not None and origin is not Literal:
        return 'a table of texts, NAME = "value"'
    plain = {str: 'text in quotes, "…"', int: "a whole number", float: "a number", bool: "true or false"}
    return plain.get(wanted) or describe(wanted)
