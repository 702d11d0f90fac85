"""``hpcrl ckpt prune``: what goes, whether it may, and its removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.retain import discard, sweep
from hpcrl.checkpoint.publish.versions import version_path
from hpcrl.checkpoint.state.retain import Keep, remove_saves
from hpcrl.checkpoint.view.keeping import Drop, Keeping, to_drop
from hpcrl.checkpoint.view.verify import verify_save
from hpcrl.cli.ckpt_look import Look
from hpcrl.cli.ckpt_text import size
from hpcrl.config.nearest import nearest
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True)
class Plan:
    """What goes.

    Attributes:
        unfinished: what publishes that were cut short have left; only of a run that does not live.
        bytes: of all that goes.
    """

    keeping: Keeping
    drop: Drop
    unfinished: tuple[Path, ...]
    bytes: int


def plan(look: Look, *, keep_last: int | None, keep_every: int | None, best: str | None, force: bool) -> Plan:
    """What goes by these rules, or by the run's own where none is given.

    Args:
        force: the run does not live.

    Raises:
        CheckFailed: the run lives and its trainer would keep some of it; or no save has such a metric.
    """
    live = look.live and not force
    keeping = look.keeping
    if keep_last is not None or keep_every is not None or best is not None:
        if best is not None:
            _check_metric(look, best)
        last = keep_last or 1
        saves = Keep(last=last, every=keep_every or 0, best=1 if best else 0, metric=best or "reward")
        keeping = Keeping(saves=saves, versions=last, versions_every=keep_every or 0)
    protected = look.protected if live else {}
    drop = to_drop(look.saves, look.versions, keeping, protected)
    if live:
        trainers = to_drop(look.saves, look.versions, look.keeping, protected)
        beyond = [f"save {name}" for name in drop.saves if name not in trainers.saves]
        beyond += [f"policy version {number}" for number in drop.versions if number not in trainers.versions]
        if beyond:
            raise CheckFailed(
                [
                    f"run {look.run.path} may be going on, and its trainer keeps what would go: {', '.join(beyond[:6])}"
                    f"{', …' if len(beyond) > 6 else ''}; wait for its end, or, if it was killed without a word, say --force"
                ]
            )
    unfinished = () if live else tuple(look.unfinished)
    gone = [info.bytes for info in look.saves if info.name in drop.saves]
    gone += [info.bytes for info in look.versions if info.version in drop.versions]
    return Plan(keeping, drop, tuple(one.path for one in unfinished), sum(gone) + sum(one.bytes for one in unfinished))


def remove(look: Look, plan: Plan) -> list[str]:
    """Remove it, once the newest save that stays was read and is whole; a sentence for each that could not be removed.

    Raises:
        CheckFailed: that save is damaged: nothing was removed.
    """
    committed = [info for info in look.saves if info.state == "committed"]
    if plan.drop.saves and committed:
        for finding in verify_save(look.run.state, committed[-1]):
            raise CheckFailed(
                [f"nothing was removed, as the newest save is damaged: {finding.text}; see hpcrl ckpt verify {look.run.path}"]
            )
    problems = remove_saves(look.run.state, plan.drop.saves)
    left = [
        *look.run.state.glob(".step-*"),
        *(path for name in plan.drop.saves if (path := look.run.state / str(name)).exists()),
    ]
    if not left:
        # The trainer was faster with some.
        problems = []
    for number in plan.drop.versions:
        path = version_path(look.run.weights, number)
        try:
            discard(path)
        except FileNotFoundError:
            # The trainer was faster.
            continue
        except OSError as error:
            problems.append(f"{path} is to go and cannot be removed: {error}")
            # Patches go before what they are built on, or both stay.
            break
    if plan.unfinished:
        try:
            sweep(look.run.weights)
        except (OSError, WeightsError) as error:
            problems.append(f"what unfinished publishes left in {look.run.weights} cannot be removed: {error}")
    return problems


def to_json(look: Look, plan: Plan, problems: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "run_id": look.run.run_id,
        "path": str(look.run.path),
        "dry_run": dry_run,
        "keeping": msgspec.to_builtins(plan.keeping),
        "saves": [str(name) for name in plan.drop.saves],
        "versions": list(plan.drop.versions),
        "unfinished": [str(path) for path in plan.unfinished],
        "bytes": plan.bytes,
        "problems": list(problems),
    }


def to_text(look: Look, plan: Plan, *, dry_run: bool) -> str:
    """A line for each that goes."""
    states = {info.name: (info.state, info.bytes) for info in look.saves}
    lines = [f"save {name} ({states[name][0]}, {size(states[name][1])})" for name in plan.drop.saves]
    sizes = {info.version: info.bytes for info in look.versions}
    lines += [f"policy version {number} ({size(sizes[number])})" for number in plan.drop.versions]
    lines += [f"{path.relative_to(look.run.path)}, unfinished" for path in plan.unfinished]
    if not lines:
        return "nothing needs to go"
    return "\n".join([*lines, f"{size(plan.bytes)} {'would be' if dry_run else 'are'} free"])


def _check_metric(look: Look, best: str) -> None:
    known = {name for info in look.saves if info.manifest is not None for name in info.manifest.metrics}
    if best.removeprefix("-") not in known:
        raise CheckFailed([f"--best {best}: no save has that figure; {nearest(best.removeprefix('-'), known)}"])
