"""The newest earlier run that did the same work on as much hardware, so that its pace is what a new one can expect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcrl.config.diff import diff
from hpcrl.launch.layout import Layout
from hpcrl.launch.pace import Pace, pace_of
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

# Of the folder's runs, so many are asked for their age, and so many opened.
_DATED = 64
_OPENED = 8
# Beside every number with a fraction: rates, thresholds, temperatures.
_KEPT = ("keep_states", "keep_states_every", "keep_best_states", "best_by", "keep_weights")
_NO_MATTER = frozenset(["name", "seed", "steps", "save_every", *_KEPT, "base_every", "trajectories"])


def earlier_pace(root: Path, names: Sequence[str], recipe: Mapping[str, Any], layout: Layout, site: str) -> Pace | None:
    """The pace of the newest comparable run in a folder that trained a step; None if there is none.

    Args:
        names: how runs of this recipe are called, at least at the beginning.
        recipe: resolved.
        site: name of the profile.
    """
    for path in _newest(root, names):
        with suppress(CheckFailed, OSError, ValueError, KeyError, TypeError, AttributeError):
            if json.loads((path / "site.json").read_text())["name"] != site:
                continue
            other = Layout.from_json((path / "layout.json").read_text())
            if hardware(other) != hardware(layout):
                continue
            if not same_work(json.loads((path / "recipe.json").read_text()), recipe):
                continue
            pace = pace_of(RunDirectory.open(path), recipe["groups"])
            if pace is not None:
                return pace
    return None


def hardware(layout: Layout) -> tuple[int, int]:
    """Nodes and GPUs that hold roles at a time."""
    return sum(item.used for item in layout.components), sum(item.used * item.gpus_per_node for item in layout.components)


def same_work(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether steps of two resolved recipes cost the same, as far as can be told: they differ in rates and seeds at most."""
    return all(
        found.path.startswith("limits.")
        or found.path.rpartition(".")[2] in _NO_MATTER
        or (_is_rate(found.a) and _is_rate(found.b))
        for found in diff(a, b)
    )


def _is_rate(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, list) and bool(value) and all(map(_is_rate, value)))


def _newest(root: Path, names: Sequence[str]) -> Iterator[Path]:
    try:
        with os.scandir(root) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    related = [entry for entry in entries if entry.name.startswith(tuple(names))] or entries
    dated = []
    # A name that ends with the time is the greater the newer it is.
    for entry in related[-_DATED:]:
        with suppress(OSError):
            dated.append((entry.stat().st_mtime, entry.path))
    yield from (Path(path) for _, path in sorted(dated, reverse=True)[:_OPENED])
