"""What the checker says in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpcrl.dataplane.verify.found import RULES, Findings, Violation
from hpcrl.dataplane.verify.stream import Stream


@dataclass(frozen=True, kw_only=True)
class StreamFigures:
    """Rows of a stream.

    Attributes:
        settled: trained for good.
        in_doubt: trained, and neither acknowledged nor in a save that is known.
        waiting: live in the last attempt and not trained.
        discarded: lost with an earlier attempt, or not seen since.
        prompts: trained for good; ``steps``: that were trained.
    """

    produced: int
    leased: int
    filled: int
    trained: int
    settled: int
    in_doubt: int
    waiting: int
    discarded: int
    cleared: int
    dropped: dict[str, int]
    prompts: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome.

    Attributes:
        violations: the first of each rule; ``counts`` has all, by rule, with 0 for those that hold.
        missing: what the history lacks.
    """

    attempts: int
    events: int
    streams: dict[str, StreamFigures]
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    missing: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows produced in all streams."""
        return sum(figures.produced for figures in self.streams.values())

    @property
    def clean(self) -> bool:
        """Nothing is against the rules."""
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "rows": self.rows}


def report_of(streams: Mapping[str, Stream], found: Findings, *, attempts: int, events: int) -> Report:
    """The report of what was found."""
    return Report(
        attempts=attempts,
        events=events,
        streams={name: _figures(stream) for name, stream in streams.items()},
        counts={rule: found.counts[rule] for rule in RULES},
        violations=tuple(found.kept),
        missing=tuple(found.missing),
    )


def _figures(stream: Stream) -> StreamFigures:
    counts = stream.counts
    in_doubt = waiting = discarded = 0
    for block in stream.live.values():
        if block.settled:
            continue
        if block.version >= 0:
            in_doubt += block.rows
        elif block.left:
            discarded += block.rows
        else:
            waiting += block.rows
    return StreamFigures(
        produced=counts.produced,
        leased=counts.leased,
        filled=counts.filled,
        trained=counts.trained,
        settled=counts.settled,
        in_doubt=in_doubt,
        waiting=waiting,
        discarded=discarded + len(stream.gone_before.discarded) + len(stream.gone.discarded),
        cleared=counts.cleared,
        dropped=counts.dropped,
        prompts=len(stream.book.done),
        steps=len(stream.training.versions),
    )
