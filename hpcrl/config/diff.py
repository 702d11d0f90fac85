"""What differs between two resolved recipes, as dotted paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True)
class Difference:
    """One place where two recipes differ. ``in_a`` and ``in_b`` say which of them has the place at all."""

    path: str
    a: Any
    b: Any
    in_a: bool = True
    in_b: bool = True

    @property
    def kind(self) -> str:
        """``changed``, ``only in A`` or ``only in B``."""
        return "changed" if self.in_a and self.in_b else "only in A" if self.in_a else "only in B"


def diff(a: Any, b: Any) -> tuple[Difference, ...]:
    """Differences of two JSON values in the order of A, then what only B has.

    Items of arrays are matched by their ``name`` where all have one, else by position; arrays of plain values count as one
    value. An order of named items that differs is a difference of the array itself.
    """
    return tuple(_walk("", a, b))


def read_resolved(path: Path) -> Any:
    """The resolved recipe in a run directory, or in a JSON file.

    Raises:
        CheckFailed: there is none, or it is not JSON.
    """
    file = path / "recipe.json" if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckFailed([f"no resolved recipe can be read from {file}: {error}"]) from error


def _walk(path: str, a: Any, b: Any) -> Iterator[Difference]:
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _walk_mappings(path, a, b)
    elif isinstance(a, list) and isinstance(b, list) and any(isinstance(item, dict | list) for item in a + b):
        named_a, named_b = _by_name(a), _by_name(b)
        if named_a is None or named_b is None:
            yield from _walk_mappings(path, dict(enumerate(a)), dict(enumerate(b)))
            return
        yield from _walk_mappings(path, named_a, named_b)
        order_a, order_b = [n for n in named_a if n in named_b], [n for n in named_b if n in named_a]
        if order_a != order_b:
            yield Difference(f"{path} (order)", order_a, order_b)
    elif type(a) is not type(b) or a != b:
        yield Difference(path, a, b)


def _walk_mappings(path: str, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Iterator[Difference]:
    prefix = f"{path}." if path else ""
    for key in a:
        if key in b:
            yield from _walk(f"{prefix}{key}", a[key], b[key])
        else:
            yield Difference(f"{prefix}{key}", a[key], None, in_b=False)
    for key in b:
        if key not in a:
            yield Difference(f"{prefix}{key}", None, b[key], in_a=False)


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
        return None
    named = {item["name"]: item for item in items}
    return named if len(named) == len(items) else None
