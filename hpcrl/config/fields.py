"""Find and replace a value deep inside frozen dataclasses, mappings and tuples, by a path of names."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Found:
    """A value at a path, and the type that was declared for it. The value is None for a new key of a mapping."""

    value: Any
    kind: Any


def find(root: Any, path: tuple[str, ...]) -> Found | None:
    """What is at a path, or None. An item of a tuple goes by its ``name``, else by its index.

    Where a field may hold settings and holds None, their fields are there all the same, with the default values: to set one of
    them asks for the settings.
    """
    found = Found(root, type(root))
    for key in path:
        step = _step(found, key)
        if step is None:
            return None
        found = step
    return found


def replaced(root: Any, path: tuple[str, ...], value: Any) -> Any:
    """The root rebuilt with another value at a path that :func:`find` knows.

    Raises:
        TypeError, ValueError: a class on the way refuses the value.
    """
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(root, Mapping):
        return {**root, key: replaced(root.get(key), rest, value)}
    if isinstance(root, tuple | list):
        index = _index(root, key)
        items = [replaced(item, rest, value) if place == index else item for place, item in enumerate(root)]
        return items if isinstance(root, list) else tuple(items)
    held = getattr(root, key)
    if held is None and rest:
        held = _default(hints(type(root))[key])  # type: ignore[arg-type]
    return dataclasses.replace(root, **{key: replaced(held, rest, value)})


def leaves(root: Any) -> Iterator[tuple[str, ...]]:
    """Paths of all values that hold no dataclass further inside."""
    for key, value in _children(root):
        inner = list(leaves(value))
        if inner:
            yield from ((key, *path) for path in inner)
        else:
            yield (key,)


@functools.cache
def hints(kind: type) -> Mapping[str, Any]:
    """Types of a dataclass's fields; a type that cannot be resolved is ``Any``, whose value keeps its present type."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    try:
        held = typing.get_type_hints(kind)
    except (NameError, AttributeError, TypeError):
        held = {}
    return {name: held.get(name, Any) for name in names}


def _default(kind: Any) -> Any:
    """Of a type that is None or a dataclass all of whose fields have defaults; else None."""
    for option in typing.get_args(kind):
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            needed = (field for field in dataclasses.fields(option) if field.init)
            if not any(field.default is field.default_factory is dataclasses.MISSING for field in needed):
                return option()
    return None


def _step(found: Found, key: str) -> Found | None:
    value = _default(found.kind) if found.value is None else found.value
    if isinstance(value, Mapping):
        kinds = typing.get_args(found.kind)
        kind = kinds[1] if len(kinds) == 2 else Any
        if key not in value and (kind is Any or dataclasses.is_dataclass(kind)):
            return None
        return Found(value.get(key), _settled(kind, value.get(key)))
    if isinstance(value, tuple | list):
        index = _index(value, key)
        if index is None:
            return None
        declared = [item for item in typing.get_args(found.kind) if item is not Ellipsis]
        kind = declared[min(index, len(declared) - 1)] if declared else Any
        return Found(value[index], _settled(kind, value[index]))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and key in hints(type(value)):
        held = getattr(value, key)
        return Found(held, _settled(hints(type(value))[key], held))
    return None


def _settled(kind: Any, value: Any) -> Any:
    return type(value) if kind is Any else kind


def _index(items: Sequence[Any], key: str) -> int | None:
    for index, item in enumerate(items):
        if getattr(item, "name", None) == key:
            return index
    return int(key) if key.isdecimal() and int(key) < len(items) else None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, tuple | list):
        if any(dataclasses.is_dataclass(item) for item in value):
            yield from ((str(getattr(item, "name", index)), item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((name, getattr(value, name)) for name in hints(type(value)))
