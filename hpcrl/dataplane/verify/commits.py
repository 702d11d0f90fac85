"""What the trainer has saved and written down, against what the history says was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.dataplane.verify.found import Findings
from hpcrl.dataplane.verify.prompts import PromptSum
from hpcrl.dataplane.verify.stream import Stream


@dataclass(frozen=True, kw_only=True)
class Commits:
    """The trainer's own word.

    Attributes:
        stream: that it trains on.
        before: newest save when the history began to be read: all it holds must be there. None = no save.
        after: newest save when it had been read: it holds all that was acknowledged. None = no save.
        place: file of ``before``, for messages.
        steps: steps that its journal told of before the history was read, but for the newest of each attempt, and the prompts
            that each trained last; None where it does not say.
    """

    stream: str
    before: Cursor | None = None
    after: Cursor | None = None
    place: str = ""
    steps: Mapping[int, PromptSum | None] = field(default_factory=dict)


def check_commits(commits: Commits, streams: Mapping[str, Stream], found: Findings) -> None:
    """Add what does not fit."""
    stream = streams.get(commits.stream)
    if stream is None or not stream.whole:
        return
    training = stream.training
    if commits.after is not None and training.acknowledged >= commits.after.step:
        found.add(
            "lost",
            f"its training was acknowledged, yet the newest save holds only step {commits.after.step}",
            row=training.acknowledged_row,
            step=training.acknowledged + 1,
            stream=stream.name,
        )
    # Without numbers of prompts in the history there is nothing to compare those of the trainer with.
    before = commits.before if stream.limits.samples is not None else None
    saved = before.step if before is not None else 0
    for step, prompts in commits.steps.items():
        there = training.prompts.get(step)
        if step - 1 not in training.versions:
            what = "the trainer's journal tells of this step, the history of no row that it trained"
            found.add("commits", what, step=step, stream=stream.name)
        elif prompts is not None and there is not None and step <= saved and prompts != there:
            what = f"it trained {prompts.count} prompts by the trainer's journal, and others, {there.count}, by the history"
            found.add("commits", what, step=step, stream=stream.name)
    if before is not None:
        _check_cursor(before, commits.place, stream, found)


def _check_cursor(cursor: Cursor, place: str, stream: Stream, found: Findings) -> None:
    book, also = stream.book, dict[int, int]()
    for block in stream.live.values():
        if 0 <= block.version < cursor.step and not block.settled:
            for prompt, rows in block.pairs:
                also[prompt] = also.get(prompt, 0) + rows
    for prompt in chain(book.done.missing(0, cursor.prompts), sorted(cursor.beyond)):
        if not book.is_trained(prompt, also=also.get(prompt, 0)):
            what = f"the save of step {cursor.step} ({place}) counts it as trained, the history does not"
            found.add("commits", what, prompt=prompt, stream=stream.name)
    if stream.training.acknowledged >= cursor.step:
        return
    partly = (number for number, prompt in sorted(book.under_way.items()) if prompt.settled and number >= cursor.prompts)
    for prompt in chain(book.done.above(cursor.prompts), partly):
        if prompt not in cursor.beyond:
            what = f"its training was acknowledged, yet the save of step {cursor.step} ({place}) does not count it as trained"
            found.add("commits", what, prompt=prompt, stream=stream.name)
