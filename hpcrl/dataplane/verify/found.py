"""What the checker may find."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.rowids import describe

RULES = {
    "ids": "row ids are unique, of the process that made them, and known before anything happens to them",
    "lives": "a process begins each life once, and does nothing before it or after the next has begun",
    "leases": "no row is leased to two at once, nor again to a group that is done with it",
    "held": "only who holds a row fills it, trains it, acknowledges it or gives it back",
    "filled": "each column of a row is filled once, and nobody reads it before",
    "once": "each row is trained exactly once",
    "prompts": "all rows of a prompt are trained, and once",
    "lost": "rows go only when their training is acknowledged or with a reason, and acknowledged training is never undone",
    "commits": "what the trainer's saves and journal say was trained is what was trained",
    "versions": "policy versions rise, and rows are made by versions that are there",
    "lag": "no row is trained by a policy too many versions newer than the one that made it",
    "pacing": "no prompt is answered further ahead of training than the window lets it",
}
# So many of each rule are kept; the others are counted.
KEPT = 20


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Something that must not be.

    Attributes:
        rule: of :data:`RULES`.
        what: a sentence.
        row: id of the row, or the first of its block.
        step: training step, counted from 1.
        attempt, event: where it shows in the history.
        who, t: process that did it, and when [Unix s].
    """

    rule: str
    what: str
    stream: str = ""
    row: int | None = None
    prompt: int | None = None
    step: int | None = None
    attempt: int | None = None
    event: int | None = None
    who: str = ""
    t: float | None = None

    def __str__(self) -> str:
        parts = [f"stream {self.stream!r}"] if self.stream else []
        if self.row is not None:
            parts.append(f"row {self.row} ({describe(self.row)})")
        parts += [f"{name} {value}" for name, value in (("prompt", self.prompt), ("step", self.step)) if value is not None]
        place = f" [attempt_{self.attempt}/history, event {self.event}]" if self.event is not None else ""
        return (", ".join(parts) + ": " if parts else "") + self.what + place


class Where(TypedDict, total=False):
    """Fields of a :class:`Violation` that say where it is."""

    row: int | None
    prompt: int | None
    step: int | None
    stream: str


@dataclass
class Findings:
    """Collects violations; knows which event is looked at.

    Attributes:
        missing: what the history lacks, so that nothing can be proven without it.
        kept: violations, the first of each rule.
        counts: all of them, by rule.
    """

    missing: list[str] = field(default_factory=list)
    kept: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    attempt: int | None = None
    number: int | None = None
    event: Event | None = None

    def add(self, rule: str, what: str, **where: Unpack[Where]) -> None:
        """Keep a violation, or count it where there are many; it is where the events are at now."""
        self.keep(self.violation(rule, what, **where))

    def keep(self, violation: Violation) -> None:
        """The same for one that was made before."""
        self.counts[violation.rule] += 1
        if self.counts[violation.rule] <= KEPT:
            self.kept.append(violation)

    def violation(self, rule: str, what: str, **where: Unpack[Where]) -> Violation:
        """A violation where the events are at now, which is kept later or never."""
        if rule not in RULES:
            raise KeyError(rule)
        event = self.event
        if event is None:
            return Violation(rule=rule, what=what, attempt=self.attempt, event=self.number, **where)
        where["stream"] = event.stream
        return Violation(rule=rule, what=what, attempt=self.attempt, event=self.number, who=event.who, t=event.t, **where)
