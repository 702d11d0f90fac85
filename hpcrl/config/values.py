"""Typed values from the text of ``--set name=text``."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def is_supported(kind: Any) -> bool:
    """Whether text can be read as a value of this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return True
    if _is_union(kind):
        # ``none`` can be said whatever the alternative is.
        return types.NoneType in arguments or all(is_supported(item) for item in arguments)
    if origin in (tuple, list, Sequence):
        items = [item for item in arguments if item is not Ellipsis]
        return bool(items) and all(_is_scalar(item) for item in items)
    return _is_scalar(kind)


def describe(kind: Any) -> str:
    """The type as a person writes it."""
    if kind is types.NoneType:
        return "None"
    if _is_union(kind):
        return " | ".join(describe(item) for item in typing.get_args(kind))
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(str(item) for item in typing.get_args(kind))
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("collections.abc.", "")


def parse(text: str, kind: Any) -> Any:
    """Read text as a value of a type.

    Sequences are comma-separated, with or without brackets; ``none`` is None; a bool is true, false, yes, no, 1 or 0.

    Raises:
        ValueError: the text is no such value.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        for item in arguments:
            if str(item) == text:
                return item
        raise ValueError(text)
    if _is_union(kind):
        return _parse_union(text, arguments)
    if origin in (tuple, list, Sequence):
        return _parse_items(text, origin, arguments)
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.lower()]
    if kind is float:
        number = float(text)
        if math.isnan(number):
            raise ValueError(text)
        return number
    if _is_scalar(kind):
        return kind(text)
    raise ValueError(text)


def _parse_union(text: str, kinds: tuple[Any, ...]) -> Any:
    if types.NoneType in kinds and text.lower() in ("none", "null"):
        return None
    # A str takes any text, so it is asked last.
    for kind in sorted((item for item in kinds if item is not types.NoneType), key=lambda item: item is str):
        try:
            return parse(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


def _parse_items(text: str, origin: Any, arguments: tuple[Any, ...]) -> Any:
    inner = text.strip()
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1]
    parts = [part.strip() for part in inner.split(",")] if inner.strip() else []
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if origin is tuple and Ellipsis not in arguments:
        if len(parts) != len(arguments):
            raise ValueError(text)
        kinds = list(arguments)
    else:
        kinds = [arguments[0]] * len(parts)
    items = [parse(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    return items if origin is list else tuple(items)


def _is_scalar(kind: Any) -> bool:
    return kind in (int, float, bool, str, Path)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)
