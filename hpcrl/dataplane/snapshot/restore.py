"""Which blocks of a snapshot a new attempt takes over. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from hpcrl.dataplane.snapshot.layout import BlockInfo

Reason = Literal["trained", "too old", "lost policy", "no prompt", "incomplete block", "incomplete group"]


@dataclass(frozen=True)
class LeftOut:
    """A block that is not taken over.

    Attributes:
        why: a sentence.
    """

    block: BlockInfo
    reason: Reason
    why: str


@dataclass(frozen=True)
class RestorePlan:
    """What is taken over and what is not, each in the snapshot's order."""

    adopt: tuple[BlockInfo, ...]
    left_out: tuple[LeftOut, ...]

    def prompts(self, stream: str) -> frozenset[int]:
        """Prompts whose rows of a stream are taken over, so that nobody produces them again."""
        return frozenset(prompt for block in self.adopt if block.stream == stream for prompt in block.labels.prompts)

    def firsts(self, stream: str) -> frozenset[int]:
        """First row ids of a stream's blocks that are taken over."""
        return frozenset(block.first for block in self.adopt if block.stream == stream)

    def rows_left_out(self) -> dict[Reason, int]:
        """Rows that are not taken over, by reason."""
        counts: Counter[Reason] = Counter()
        for left in self.left_out:
            counts[left.reason] += left.block.rows
        return dict(counts)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the new attempt goes on.

    Attributes:
        trained_below: prompts below this number were trained, and so were those of ``trained_beyond``: what the trainer's
            newest save says, see :class:`hpcrl.checkpoint.cursor.Cursor`.
        version: the policy that training goes on with.
        version_lag: the limit, in versions.
        created: columns that a stream's blocks have from the put on.
        group_rows: rows of a prompt's whole group, of the streams that have groups.
    """

    trained_below: int
    trained_beyond: AbstractSet[int] = frozenset()
    version: int
    version_lag: int
    created: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    group_rows: Mapping[str, int] = field(default_factory=dict)


def plan_restore(blocks: Iterable[BlockInfo], start: Start) -> RestorePlan:
    """Choose the blocks that a new attempt takes over. A block goes as a whole, and so does a prompt's group.

    A block is left out, for the first of these reasons that holds, if

    - any of its rows is of a prompt that was trained;
    - any was begun by a policy more than ``version_lag`` versions older than the one that training goes on with;
    - any was made by a newer policy than that one: its weights were lost, and another policy will have its number;
    - it lacks a column of its put: the node that held it wrote its file after the block was cleared;
    - it names no prompts, in a stream with groups: nobody can tell whether it was trained;
    - any is of a prompt of which not exactly the group's rows would be taken over. A block that is left out for this may
      leave others incomplete, so this is repeated until nothing changes.
    """
    given = list(blocks)
    out: dict[int, LeftOut] = {}
    for at, block in enumerate(given):
        found = _unfit(block, start)
        if found is not None:
            out[at] = LeftOut(block, *found)
    _leave_incomplete(given, start.group_rows, out)
    adopt = tuple(block for at, block in enumerate(given) if at not in out)
    return RestorePlan(adopt, tuple(out[at] for at in sorted(out)))


def _unfit(block: BlockInfo, start: Start) -> tuple[Reason, str] | None:
    labels, version = block.labels, start.version
    trained = [prompt for prompt in labels.prompts if prompt < start.trained_below or prompt in start.trained_beyond]
    if trained:
        return "trained", f"prompt {trained[0]} was trained"
    # A row without a token has no version.
    oldest = min((first for first in labels.first_versions if first >= 0), default=version)
    newest = max([*labels.first_versions, *labels.last_versions], default=version)
    if version - oldest > start.version_lag:
        behind = f"{version - oldest} before {version}; the limit is {start.version_lag}"
        return "too old", f"policy version {oldest} began a row, {behind}"
    if newest > version:
        return "lost policy", f"policy version {newest} made a row, and training goes on from {version}"
    if missing := sorted(start.created.get(block.stream, frozenset()) - block.columns):
        return "incomplete block", f"its column {missing[0]!r} was not saved"
    if block.stream in start.group_rows and not labels.prompts:
        return "no prompt", "its prompts are not known, so nobody can tell whether it was trained"
    return None


def _leave_incomplete(given: list[BlockInfo], groups: Mapping[str, int], out: dict[int, LeftOut]) -> None:
    rows: Counter[tuple[str, int]] = Counter()
    holders: dict[tuple[str, int], list[int]] = {}
    for at, block in enumerate(given):
        if at not in out and block.stream in groups:
            for prompt, count in Counter(block.labels.prompts).items():
                rows[block.stream, prompt] += count
                holders.setdefault((block.stream, prompt), []).append(at)
    waiting = [key for key, count in rows.items() if count != groups[key[0]]]
    while waiting:
        stream, prompt = key = waiting.pop()
        for at in holders[key]:
            if at in out:
                continue
            why = f"prompt {prompt} has {rows[key]} of {groups[stream]} rows that can be taken over"
            out[at] = LeftOut(given[at], "incomplete group", why)
            for other, count in Counter(given[at].labels.prompts).items():
                if other != prompt:
                    rows[stream, other] -= count
                    waiting.append((stream, other))
