from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.rules import Rules, StreamRules

ROW = 100


def make_rules(**changes: Any) -> Rules:
    """Two makers, two scorers who fill ``reward``, two trainers of whom the acknowledgement clears, two who look on."""
    stream = {
        "name": "s",
        "columns": ("x", "reward"),
        "created": ("x",),
        "creators": ("make",),
        "fillers": {"reward": ("score",)},
        "readers": ("score", "train", "watch"),
        "final": "train",
        "block_rows": 4,
        "capacity_rows": 1_000_000,
        "capacity_bytes": 1 << 40,
        "max_row_bytes": 1000,
    }
    return Rules(
        processes={"make": 2, "score": 2, "train": 2, "watch": 2},
        streams={"s": StreamRules(**{**stream, **changes})},
        announcers={"gate": ("train",)},
    )


class Driver:
    """Processes that say things to one ledger."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.ledger, self.now = rules, Ledger(rules), 1000.0
        self.lives: Counter[str] = Counter()
        self.seqs: Counter[str] = Counter()
        self.log: list[tuple[ops.Logged, float]] = []
        self.events: list[Event] = []
        self.first = 0

    def apply(self, op: ops.Logged) -> ops.Answer:
        answer, events = self.ledger.apply(op, self.now)
        if ops.durable(op, answer):
            self.log.append((op, self.now))
        else:
            assert events == []
        self.events += events
        return answer

    def say(self, who: str, kind: type[ops.Op], **fields: Any) -> Any:
        if who not in self.lives:
            self.hello(who)
        self.seqs[who] += 1
        seq = self.seqs[who]
        return self.apply(kind(who=who, life=self.lives[who], seq=seq, oldest=seq, **fields))  # type: ignore[arg-type]

    def hello(self, who: str) -> Any:
        self.lives[who] += 1
        self.seqs[who] = 0
        return self.say(who, ops.Hello)

    def put(self, who: str = "make.0", rows: int = 2, tokens: int = 1, **fields: Any) -> Any:
        refs = {"x": ops.Ref("inline", rows * ROW, data=b"x")}
        labels = ops.Labels(prompts=[self.first] * rows, tokens=[tokens] * rows)
        fields = {"first": self.first, "refs": refs, "labels": labels, "bytes": rows * ROW, **fields}
        answer = self.say(who, ops.Put, stream="s", rows=rows, **fields)
        if answer == ops.Granted():
            self.first += rows
        return answer

    def lease(self, who: str, *columns: str, rows: int = 4, seconds: float = 30.0) -> Any:
        return self.say(who, ops.Lease, stream="s", columns=list(columns or ("x",)), max_rows=rows, seconds=float(seconds))

    def take(self, who: str, *columns: str, rows: int = 4, seconds: float = 30.0) -> list[int]:
        return [given.first for given in self.lease(who, *columns, rows=rows, seconds=seconds).blocks]

    def fill(self, who: str, *firsts: int) -> Any:
        blocks = {first: {"reward": ops.Ref("inline", 8, data=who.encode())} for first in firsts}
        return self.say(who, ops.Fill, stream="s", blocks=blocks)

    def acknowledge(self, who: str, *firsts: int) -> Any:
        return self.say(who, ops.Acknowledge, stream="s", blocks=list(firsts))

    def close(self, *whos: str) -> None:
        for who in whos:
            self.say(who, ops.Close, stream="s")

    def draw(self, who: str, number: int, share: int, *, rows: int = 4, shares: int = 2, **fields: Any) -> Any:
        fields = {"columns": ["x"], "seconds": 30.0, **fields}
        return self.say(who, ops.Draw, stream="s", draw=number, rows=rows, share=share, shares=shares, **fields)

    def sleep(self, seconds: float, *alive: str) -> None:
        """Time passes, looked at twice a second; some processes say that they live."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for who in alive:
                self.say(who, ops.Beat)
            for op in self.ledger.due(self.now):
                self.apply(op)

    def figures(self) -> dict[str, Any]:
        return self.ledger.figures("s")["s"]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def replay(self) -> Ledger:
        again = Ledger(self.rules)
        for op, now in self.log:
            again.apply(ops.decode_logged(ops.encode(op)), now)
        return again


@pytest.fixture
def drive() -> Driver:
    """A driver of a roomy stream."""
    return Driver(make_rules())


@pytest.fixture
def make_driver() -> Callable[..., Driver]:
    """A driver of a stream of one's own."""
    return lambda **changes: Driver(make_rules(**changes))


@pytest.fixture(scope="session")
def driver_of() -> Callable[[Rules], Driver]:
    """A driver of any rules."""
    return Driver
