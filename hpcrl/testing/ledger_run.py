"""A run without any model: producers, graders and a trainer over a real ledger, with kills, rollbacks and attempts.

What it leaves is its history, its saves and its journal, as a real run does; the same seed gives the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hpcrl.algorithms.pacing import version_needed
from hpcrl.checkpoint.cursor import Cursor
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.ops import (
    Acknowledge,
    Answer,
    AnyOp,
    Draw,
    Drop,
    Fill,
    GiveBack,
    Hello,
    Labels,
    Lease,
    Leased,
    Logged,
    Op,
    Put,
    Ref,
    Refused,
    Trained,
)
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.ledger.rules import Rules, StreamRules
from hpcrl.dataplane.rowids import RowIds

STREAM = "samples"
_REF = Ref("inline", 1, data=b"x")
_LEASE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large the run is.

    Attributes:
        ranks: of the trainer; each trains its share of a draw.
        faults: chance of a kill or the like before each action.
        keep: chance that a snapshot brings an attempt's rows into the next.
    """

    steps: int = 24
    prompts_per_step: int = 3
    samples: int = 4
    lag: int = 3
    window: int | None = None
    save_every: int = 3
    attempts: int = 3
    rollouts: int = 2
    rewards: int = 2
    ranks: int = 2
    faults: float = 0.03
    keep: float = 0.5


@dataclass
class Left:
    """What the run left: events with attempt and number, the newest save, and the prompts of each step."""

    events: list[tuple[int, int, Event]] = field(default_factory=list)
    cursor: Cursor | None = None
    steps: dict[int, list[int]] = field(default_factory=dict)


class LedgerRun:
    """See the module."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self._draw, self._shape, self.left = random.Random(seed), shape, Left()
        self._saved: tuple[int, frozenset[int], list[int]] = (0, frozenset(), [])
        self._now, self._step, self._trained = 1_700_000_000.0, 0, set[int]()
        self._snapshot: list[LiveBlock] = []

    def run(self) -> Left:
        """All attempts, the last one to the last step."""
        shape = self._shape
        for attempt in range(1, shape.attempts + 1):
            self._begin(attempt)
            last = attempt == shape.attempts
            goal = shape.steps if last else min(shape.steps, self._step + shape.steps // shape.attempts)
            while self._step < goal:
                self._act()
            if last or self._draw.random() < 0.5:
                self._save()
        return self.left

    def _begin(self, attempt: int) -> None:
        shape = self._shape
        self._attempt, self._ledger = attempt, Ledger(self._rules())
        if self._snapshot and self._draw.random() < shape.keep:
            kept = self._snapshot
            number = self._ledger.events
            self._note(number, self._ledger.adopt(kept, self._now))
        self._lives: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._ids: dict[str, RowIds] = {}
        self._held: dict[str, list[int]] = {}
        for who in ("trainer.0", *self._names("rollout", shape.rollouts), *self._names("reward", shape.rewards)):
            self._start(who)

    def _act(self) -> None:
        shape, draw = self._shape, self._draw
        self._now += draw.random() * 0.2
        for op in self._ledger.due(self._now):
            self._apply(op)
        if draw.random() < shape.faults:
            self._fault()
        rollout, reward = f"rollout.{draw.randrange(shape.rollouts)}", f"reward.{draw.randrange(shape.rewards)}"
        draw.choice([lambda: self._produce(rollout), lambda: self._grade(reward), self._train])()

    def _fault(self) -> None:
        shape, draw = self._shape, self._draw
        match draw.randrange(6):
            case 0:
                self._start(f"rollout.{draw.randrange(shape.rollouts)}")
            case 1:
                self._start(f"reward.{draw.randrange(shape.rewards)}")
            case 2:
                self._start("trainer.0")
            case 3:
                self._ledger = Ledger.from_state(self._rules(), self._ledger.state())
            case 4:
                # Long enough for every lease to run out, but for those of the trainer, which says that it lives.
                for _ in range(12):
                    self._now += 0.9
                    for rank in range(shape.ranks if "trainer.1" in self._lives else 1):
                        self._ask(
                            Lease, f"trainer.{rank}", stream=STREAM, columns=["text", "score"], max_rows=0, seconds=_LEASE_S
                        )
                    for op in self._ledger.due(self._now):
                        self._apply(op)
            case 5:
                self._snapshot = list(self._ledger.live_refs())

    def _start(self, who: str) -> None:
        """A process begins a life; the trainer's ranks together, from the newest save."""
        group, _, rank = who.partition(".")
        if group == "trainer":
            self._step, self._trained = self._saved[0], set(self._saved[1])
            for number in [number for number in self.left.steps if number > self._step]:
                del self.left.steps[number]
            for other in range(self._shape.ranks):
                self._hello(f"trainer.{other}")
            if self._saved[2]:
                self._ask(Acknowledge, "trainer.0", stream=STREAM, blocks=self._saved[2])
            self._draws = self._step + (self._lives["trainer.0"] << 20)
            return
        self._hello(who)
        if group == "rollout":
            life = self._lives[who]
            self._ids[who] = RowIds(attempt=life >> 8, incarnation=life & 255, writer=int(rank))

    def _hello(self, who: str) -> None:
        self._lives[who] = self._lives[who] + 1 if who in self._lives else self._attempt << 8
        self._seqs[who], self._held[who] = 0, []
        self._ask(Hello, who)

    def _produce(self, who: str) -> None:
        shape, live = self._shape, {p for block in self._ledger.live_refs() for p in block.labels.prompts}
        prompt = next(n for n in range(shape.steps * shape.prompts_per_step + 1) if n not in live and n not in self._trained)
        batch = prompt // shape.prompts_per_step
        if batch >= shape.steps or self._step < version_needed(batch, window=shape.window, version_lag=shape.lag):
            return
        rows = shape.samples
        first = int(self._ids[who].take(rows)[0])
        tokens = [self._draw.randrange(100, 9000) for _ in range(rows)]
        oldest = [max(0, self._step - self._draw.randrange(2)) for _ in range(rows)]
        needed = version_needed(batch, window=shape.window, version_lag=shape.lag)
        labels = Labels([prompt] * rows, [max(needed, version) for version in oldest], [self._step] * rows, tokens)
        self._ask(Put, who, stream=STREAM, first=first, rows=rows, refs={"text": _REF}, bytes=rows, labels=labels)

    def _grade(self, who: str) -> None:
        held = self._held[who]
        if not held:
            answer = self._ask(Lease, who, stream=STREAM, columns=["text"], max_rows=3 * self._shape.samples, seconds=_LEASE_S)
            assert isinstance(answer, Leased)
            self._held[who] = [given.first for given in answer.blocks]
        elif self._draw.random() < 0.1:
            self._ask(GiveBack, who, stream=STREAM, blocks=held)
            self._held[who] = []
        else:
            self._ask(Fill, who, stream=STREAM, blocks={first: {"score": _REF} for first in held})
            self._held[who] = []

    def _train(self) -> None:
        """One step: what each rank was given, but for prompts that were trained already."""
        shape = self._shape
        shares: list[list[int]] = []
        for rank in range(shape.ranks):
            answer = self._ask(
                Draw,
                f"trainer.{rank}",
                stream=STREAM,
                columns=["text", "score"],
                draw=self._draws,
                rows=shape.prompts_per_step * shape.samples,
                share=rank,
                shares=shape.ranks,
                seconds=_LEASE_S,
            )
            if not isinstance(answer, Leased) or not answer.fixed:
                return
            shares.append([given.first for given in answer.blocks])
        self._draws += 1
        prompts = {block.first: block.labels.prompts[0] for block in self._ledger.live_refs()}
        oldest = {block.first: min(block.labels.first_versions) for block in self._ledger.live_refs()}
        trained: list[int] = []
        self._step += 1
        for rank, share in enumerate(shares):
            for first in share:
                if prompts[first] in self._trained or self._step - 1 - oldest[first] > shape.lag:
                    self._ask(Drop, f"trainer.{rank}", stream=STREAM, blocks=[first], reason="stale")
                else:
                    trained.append(prompts[first])
                    self._trained.add(prompts[first])
                    self._held[f"trainer.{rank}"].append(first)
                    version = self._step
                    self._ask(Trained, f"trainer.{rank}", stream=STREAM, blocks=[first], version=version)
        if not trained:
            self._step -= 1
            return
        self.left.steps[self._step] = trained
        if self._step % shape.save_every == 0:
            self._save()

    def _save(self) -> None:
        rows = [first for rank in range(self._shape.ranks) for first in self._held[f"trainer.{rank}"]]
        self._saved = (self._step, frozenset(self._trained), rows)
        below = next(number for number in range(len(self._trained) + 1) if number not in self._trained)
        beyond = frozenset(number for number in self._trained if number > below)
        self.left.cursor = Cursor(self._step, below, beyond)
        for rank in range(self._shape.ranks):
            if self._draw.random() < 0.1:
                # Killed between the save and the acknowledgement.
                self._start("trainer.0")
                return
            who = f"trainer.{rank}"
            self._ask(Acknowledge, who, stream=STREAM, blocks=self._held[who])
            self._held[who] = []

    def _ask(self, kind: type[Op], who: str, **fields: object) -> Answer:
        self._seqs[who] += 1
        op: AnyOp = kind(who=who, life=self._lives[who], seq=self._seqs[who], oldest=self._seqs[who], **fields)  # type: ignore[assignment]
        answer = self._apply(op)
        if isinstance(answer, Refused) and answer.kind != "lost":
            raise ValueError(answer.reason)
        return answer

    def _apply(self, op: Logged) -> Answer:
        number = self._ledger.events
        answer, events = self._ledger.apply(op, self._now)
        self._note(number, events)
        return answer

    def _note(self, number: int, events: list[Event]) -> None:
        self.left.events += [(self._attempt, number + index, event) for index, event in enumerate(events)]

    def _names(self, group: str, count: int) -> list[str]:
        return [f"{group}.{rank}" for rank in range(count)]

    def _rules(self) -> Rules:
        shape = self._shape
        stream = StreamRules(
            name=STREAM,
            columns=("text", "score"),
            created=("text",),
            creators=("rollout",),
            fillers={"score": ("reward",)},
            readers=("reward", "trainer"),
            final="trainer",
            block_rows=shape.samples,
            capacity_rows=1 << 20,
            capacity_bytes=1 << 30,
            max_row_bytes=100,
        )
        processes = {"rollout": shape.rollouts, "reward": shape.rewards, "trainer": shape.ranks}
        return Rules(processes=processes, streams={STREAM: stream}, announcers={})
