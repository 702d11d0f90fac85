"""Why saves and versions stay, in words, and which may go; pure. The rules are retention's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hpcrl.checkpoint.publish import retain as publish_retain
from hpcrl.checkpoint.publish.versions import with_ancestors
from hpcrl.checkpoint.state import retain as state_retain
from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.state.retain import Held, Keep
from hpcrl.checkpoint.view.saves import SaveInfo
from hpcrl.checkpoint.view.versions import VersionInfo


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """What stays.

    Attributes:
        saves: see :class:`~hpcrl.checkpoint.state.retain.Keep`.
        versions: so many newest policy versions.
        versions_every: versions that are a multiple of this; 0 = none.
    """

    saves: Keep = Keep()
    versions: int = 2
    versions_every: int = 0


@dataclass(frozen=True)
class Drop:
    """What may go.

    Attributes:
        saves: committed ones first, then what was left unfinished or is damaged and older than the newest whole one.
        versions: falling, so that a patch goes before what it is built on.
    """

    saves: tuple[SaveName, ...] = ()
    versions: tuple[int, ...] = ()


def why_saves_stay(saves: Sequence[SaveInfo], keep: Keep) -> dict[SaveName, list[str]]:
    """Reasons, by the committed saves that stay."""
    held = _held(saves)
    if not held:
        return {}
    every, best = keep.every, keep.best
    newest = max(one.name for one in held)
    reasons: dict[SaveName, list[str]] = {}
    only = Keep(last=1, metric=keep.metric)
    rules = [
        (f"of the newest {keep.last}", msgspec.structs.replace(only, last=keep.last)),
        (f"step a multiple of {every}", msgspec.structs.replace(only, every=every)),
        (f"of the best {best} by {keep.metric}", msgspec.structs.replace(only, best=best)),
    ]
    for text, rule in rules:
        gone = set(state_retain.to_drop(held, rule))
        # Each rule leaves the newest in any case.
        for name in sorted({one.name for one in held} - gone - {newest}):
            reasons.setdefault(name, []).append(text)
    reasons[newest] = ["the newest"]
    return reasons


def why_versions_stay(
    versions: Sequence[VersionInfo], keeping: Keeping, protected: Mapping[int, str] | None = None
) -> dict[int, list[str]]:
    """Reasons, by the versions that stay.

    Args:
        protected: by version, why it must stay in any case.
    """
    previous, protected = _previous(versions), protected or {}
    newest = sorted(previous)[-keeping.versions :] if keeping.versions > 0 else []
    reasons: dict[int, list[str]] = {}
    for number in sorted(previous):
        if number in newest:
            reasons.setdefault(number, []).append("the newest" if number == newest[-1] else f"of the newest {keeping.versions}")
        if keeping.versions_every and number % keeping.versions_every == 0:
            reasons.setdefault(number, []).append(f"a multiple of {keeping.versions_every}")
        if number in protected:
            reasons.setdefault(number, []).append(protected[number])
    for number in sorted(reasons):
        for before in sorted(with_ancestors({number}, previous) - {number}):
            needed = reasons.setdefault(before, [])
            if not any("built on it" in reason for reason in needed):
                needed.append(f"version {number} is built on it")
    return reasons


def to_drop(
    saves: Sequence[SaveInfo],
    versions: Sequence[VersionInfo],
    keeping: Keeping,
    protected: Mapping[int, str] | None = None,
) -> Drop:
    """What may go; never the newest save that is whole, nor what a version that stays is built on. Foreign saves stay."""
    held = _held(saves)
    gone: list[SaveName] = []
    if held:
        newest = max(one.name for one in held)
        gone = state_retain.to_drop(held, keeping.saves)
        gone += [info.name for info in saves if info.state in ("partial", "damaged") and info.name < newest]
    dropped = publish_retain.to_drop(
        _previous(versions),
        keep_last=max(1, keeping.versions),
        keep_every=keeping.versions_every or None,
        protect=set(protected or {}),
    )
    return Drop(tuple(gone), tuple(dropped))


def _held(saves: Sequence[SaveInfo]) -> list[Held]:
    whole = (info for info in saves if info.state == "committed" and info.manifest is not None)
    return [Held(info.name, info.manifest.metrics) for info in whole if info.manifest is not None]


def _previous(versions: Sequence[VersionInfo]) -> dict[int, int | None]:
    return {info.version: None if info.record is None else info.record.previous for info in versions}
