"""Which saves stay, and the removal of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hpcrl.checkpoint.state.layout import MANIFEST, SaveName, StateError, look
from hpcrl.checkpoint.state.manifest import read_manifest
from hpcrl.run.disk import FileDamaged, remove_marked
from hpcrl.run.failpoints import reach


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What stays.

    Attributes:
        last: so many newest saves.
        every: the newest save of each step that is a multiple of this; 0 = none.
        best: so many saves with the highest ``metric``; 0 = none.
        metric: a figure of the step; with ``-`` before it, the lowest are the best.
    """

    last: int = 2
    every: int = 0
    best: int = 0
    metric: str = "reward"


@dataclass(frozen=True)
class Held:
    """A committed save.

    Attributes:
        metrics: its step's figures.
    """

    name: SaveName
    metrics: Mapping[str, float] = field(default_factory=dict)


def to_drop(held: Sequence[Held], keep: Keep) -> list[SaveName]:
    """Which committed saves may go, oldest first; never the newest."""
    names = sorted(one.name for one in held)
    stay = set(names[-max(1, keep.last) :])
    if keep.every:
        # The later of two saves of a step takes the earlier one's place.
        stay |= set({name.step: name for name in names if name.step % keep.every == 0}.values())
    if keep.best:
        metric, sign = keep.metric.removeprefix("-"), -1.0 if keep.metric.startswith("-") else 1.0
        ranked = sorted((one for one in held if metric in one.metrics), key=lambda one: (sign * one.metrics[metric], one.name))
        stay |= {one.name for one in ranked[-keep.best :]}
    return [name for name in names if name not in stay]


def prune(folder: Path, keep: Keep, *, run_id: str | None = None) -> list[str]:
    """Remove the saves of a run that need not stay, and what was left unfinished before the newest one.

    To be called after a commit.

    Returns:
        A sentence for each that could not be removed; the next call tries again.
    """
    held: list[Held] = []
    problems: list[str] = []
    saves = look(folder)
    for name in saves.committed:
        try:
            held.append(Held(name, read_manifest(folder, name, run_id).metrics))
        except (FileDamaged, StateError) as error:
            problems.append(f"{error}; it is not removed")
    if not held:
        return problems
    newest = max(one.name for one in held)
    gone = [*to_drop(held, keep), *(name for name in (*saves.partial, *saves.damaged) if name < newest)]
    reach("prune.begin", folder)
    problems += remove_saves(folder, gone)
    reach("prune.done", folder)
    return problems


def remove_unfinished(folder: Path, before: SaveName) -> list[str]:
    """Remove what was left unfinished by earlier saves, to have its room; what cannot be is named as in :func:`prune`."""
    return remove_saves(folder, [name for name in look(folder).partial if name < before])


def remove_saves(folder: Path, names: Sequence[SaveName]) -> list[str]:
    """Remove these, and what an earlier removal has left; what cannot be is named as in :func:`prune`."""
    problems = []
    paths = [folder / str(name) for name in names]
    for path in [*paths, *folder.glob(".step-*.old")]:
        try:
            remove_marked(path, MANIFEST)
        except OSError as error:
            problems.append(f"{path} is to go and cannot be removed: {error}")
    return problems
