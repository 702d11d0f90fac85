"""What the journal looks like to a metrics server: named points against a step, and the recipe as flat parameters. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.tracking.figures import StepFigures, derived, number, whole


@dataclass(frozen=True)
class Point:
    """One value of one metric.

    Attributes:
        millis: Unix time [ms], from the journal, so that logging the same record again gives the same point.
    """

    name: str
    value: float
    step: int
    millis: int


def points_of(writer: str, record: Mapping[str, Any]) -> list[Point]:
    """The points of one journal record: figures of a step, of a switch of weights, and of kind ``metrics``.

    A record without a time or a step gives none. Rewards come by step from :func:`points_of_outcomes`.
    """
    kind, t = record.get("kind"), number(record.get("t"))
    step = whole(record.get("version" if kind == "served" else "step"))
    if t is None or step is None:
        return []
    millis = round(t * 1000)
    values = {
        name: value
        for name, item in record.items()
        if name not in ("t", "kind", "step") and (value := number(item)) is not None
    }
    if kind == "step":
        return [Point(f"train/{clean(name)}", value, step, millis) for name, value in derived(values).items()]
    if kind == "served":
        return [Point("weights/load_s", values["load_s"], step, millis)] if "load_s" in values else []
    if kind == "metrics":
        group = clean(writer.partition(".")[0])
        return [Point(f"{group}/{clean(name)}", value, step, millis) for name, value in values.items()]
    return []


def points_of_outcomes(step: StepFigures) -> list[Point]:
    """Shares of the step's rewards by outcome, at the time of the step."""
    count = sum(step.outcomes.values())
    if not count:
        return []
    millis = round(step.t * 1000)
    return [Point(f"outcomes/{clean(name)}", value / count, step.step, millis) for name, value in step.outcomes.items()]


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) for every leaf of JSON-like data; an empty container is a leaf."""
    if isinstance(value, Mapping) and value:
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list | tuple) and value:
        items = iter(enumerate(value))
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)
        return
    for key, item in items:
        yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))


def settings(recipe: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) for every setting of a resolved recipe; of the type tags only those that name a role."""
    for name, text in flatten(recipe):
        holder, _, leaf = name.rpartition(".")
        if leaf != "$type":
            yield name, text
        elif holder.endswith(".role"):
            yield holder, text


def parameters(recipe: Any, *, longest_name: int, longest_value: int) -> dict[str, str]:
    """The settings of a resolved recipe as flat parameters, names and values cut at a server's limits."""
    return {clean(name)[:longest_name]: cut(text, longest_value) for name, text in settings(recipe)}


def clean(name: str) -> str:
    """A name with only the characters that MLflow allows in one."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)


def cut(text: str, longest: int) -> str:
    """A text of at most ``longest`` characters; what is cut shows as an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
