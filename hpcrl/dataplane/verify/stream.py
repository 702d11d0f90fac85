"""One stream as the checker sees it: its live rows, what became of the others, and its trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpcrl.dataplane.verify.blocks import Block, Gone
from hpcrl.dataplane.verify.found import Findings
from hpcrl.dataplane.verify.intervals import IntervalSet
from hpcrl.dataplane.verify.prompts import PromptBook, PromptSum


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a recipe promises of a stream; None where it promises nothing.

    Attributes:
        samples: rows of each prompt.
        version_lag: the most versions between the one that made a row and the one that trains on it.
        needed: from a prompt's number to the smallest version that may have begun to answer it.
    """

    samples: int | None = None
    version_lag: int | None = None
    needed: Callable[[int], int] | None = None


@dataclass
class Training:
    """Of the group that trains on a stream.

    Attributes:
        life: of the group, the newest that trained; -1 = nothing was trained yet.
        version: trained last; ``peak``: the highest ever; -1 = none.
        abandoned: the highest version made by training that was rolled back later, -1 = none.
        acknowledged: the highest trained version of rows whose training was acknowledged, and one of these rows.
        versions: every version that was trained.
        prompts: which prompts each step trained, last.
    """

    group: str = ""
    life: int = -1
    version: int = -1
    peak: int = -1
    abandoned: int = -1
    acknowledged: int = -1
    acknowledged_row: int = -1
    versions: IntervalSet = field(default_factory=IntervalSet)
    prompts: dict[int, PromptSum] = field(default_factory=dict)


@dataclass
class Counts:
    """Rows of a stream by what happened to them."""

    produced: int = 0
    leased: int = 0
    filled: int = 0
    trained: int = 0
    settled: int = 0
    cleared: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class Stream:
    """All that is known of a stream.

    Args:
        whole: whether the history is there from the run's start.

    Attributes:
        live: blocks by their first row.
        gone, gone_before: rows that left in this attempt, and in earlier ones, which a snapshot may bring back.
        untrained: blocks that were acknowledged and cleared without any training: first row, event and attempt of some.
        attempt: the one that the events belong to.
    """

    def __init__(self, name: str, limits: Limits, findings: Findings, *, whole: bool) -> None:
        self.name, self.limits, self.findings, self.whole = name, limits, findings, whole
        self.live: dict[int, Block] = {}
        self.gone, self.gone_before = Gone(), Gone()
        self.book = PromptBook(limits.samples)
        self.training = Training()
        self.counts = Counts()
        self.untrained: list[tuple[int, int | None, int | None]] = []
        self.attempt = 0

    def begin(self, attempt: int) -> None:
        """A further attempt begins: its ledger has nothing, or what a snapshot had."""
        self.attempt = attempt
        self.gone_before.update(self.gone)
        self.gone = Gone()
        self.book.leave()
        self.check_cleared()
        for first, block in list(self.live.items()):
            block.left = True
            block.filled = block.asked = 0
            block.holds = {}
            in_doubt = block.version >= 0 and not block.settled
            if not in_doubt and all(self.book.is_over(number) for number, _ in block.pairs):
                self.gone_before.discarded.add(first, block.rows)
                del self.live[first]

    def check_cleared(self) -> None:
        """Rows that were acknowledged in this attempt are gone."""
        for first, block in self.live.items():
            if block.acked and not block.left:
                what = "its training was acknowledged, and it was never cleared"
                self.findings.add("lost", what, row=first, prompt=block.prompt, step=block.version + 1, stream=self.name)

    def find(self, first: int, rows: int, rule: str, doing: str) -> Block | None:
        """A live block; None, and a violation of ``rule``, where it is none any more.

        Args:
            doing: what happens to it, for the message: "rows were …".
        """
        block = self.live.get(first)
        if block is None or block.left:
            if became := self.gone.what(first):
                self.findings.add(rule, f"rows were {doing} after they had been {became}", row=first)
            elif block is not None or self.gone_before.what(first):
                self.findings.add(
                    "ids", f"rows of an earlier attempt were {doing}, and were not restored in this one", row=first
                )
            else:
                self.findings.add("ids", f"rows were {doing} that nobody had produced", row=first)
            return None
        if block.rows != rows:
            self.findings.add("ids", f"a block of {block.rows} rows had {rows} when they were {doing}", row=first)
        return block

    def restored(self, first: int, rows: int) -> tuple[Block, bool]:
        """A block that a snapshot has brought into this attempt, and whether it was not known of."""
        block = self.live.get(first)
        fresh = block is None
        if block is None:
            block = self.live[first] = Block(first, rows)
            block.settled = first in self.gone_before.trained
            fresh = not self.gone_before.what(first)
        elif block.version < 0:
            self.book.waiting(block.pairs)
        block.left, block.restored = False, True
        return block, fresh
