"""Random operations of processes that are killed, go silent, and lose answers, on a ledger that is killed too."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.rules import group_of

CAPACITY = 24
MAKERS, SCORERS, TRAINERS = ("make.0", "make.1"), ("score.0", "score.1"), ("train.0", "train.1")
EVERYBODY = (*MAKERS, *SCORERS, *TRAINERS, "watch.0")


class Model:
    """What must be so, worked out from events and answers alone."""

    def __init__(self) -> None:
        self.produced: dict[int, int] = {}
        self.gone: dict[int, str] = {}
        self.holder: dict[tuple[str, int], str] = {}
        self.trained: dict[int, list[str]] = defaultdict(list)

    def see(self, event: Event) -> None:
        group = group_of(event.who)
        for first, rows in event.blocks:
            assert first not in self.gone, f"{event.kind} of what was {self.gone[first]}"
            match event.kind:
                case "produced":
                    assert first not in self.produced
                    self.produced[first] = rows
                case "leased":
                    assert (group, first) not in self.holder, "two holders at a time"
                    self.holder[group, first] = event.who
                case "expired" | "given_back":
                    del self.holder[group, first]
                case "filled":
                    self.holder.pop((group, first), None)
                case "acknowledged":
                    self.holder.pop((group, first), None)
                case "trained":
                    # Taken up again, if the lease ran out while it was trained.
                    self.holder.setdefault((group, first), event.who)
                    self.trained[first].append(event.who)
                case "cleared" | "dropped":
                    self.gone[first] = event.kind
                    for key in [key for key in self.holder if key[1] == first]:
                        del self.holder[key]
            assert self.produced[first] == rows

    @property
    def live(self) -> set[int]:
        return self.produced.keys() - self.gone.keys()


class World:
    """The processes, and what each believes that it holds."""

    def __init__(self, drive: Any, seed: int) -> None:
        self.drive, self.random, self.model = drive, random.Random(seed), Model()
        self.seen = 0
        self.mine: dict[str, set[int]] = defaultdict(set)
        self.draws = 0
        self.parts: list[tuple[bytes, int]] = []

    def step(self) -> None:
        drive, rnd = self.drive, self.random
        who = rnd.choice(EVERYBODY)
        roll = rnd.random()
        if roll < 0.03:
            self.kill(who)
        elif roll < 0.05:
            drive.ledger = Ledger.from_state(drive.rules, drive.ledger.state())
            self.parts.append((drive.ledger.state(), len(drive.log)))
        elif roll < 0.10:
            drive.sleep(rnd.choice([1, 3, 8]), *rnd.sample(EVERYBODY, 3))
        else:
            self.work(who)
        if drive.log and rnd.random() < 0.1:
            self.say_again()
        self.check()

    def kill(self, who: str) -> None:
        held, self.mine[who] = self.mine[who], set()
        saved = [first for first in held if who in TRAINERS and self.model.trained[first] and self.random.random() < 0.5]
        # A checkpoint holds only what this process was not told it had lost.
        kept = [f for f in saved if f in self.model.live and self.model.holder.get(("train", f)) == who]
        self.drive.hello(who)
        if kept:
            self.drive.acknowledge(who, *kept)

    def work(self, who: str) -> None:
        drive, rnd = self.drive, self.random
        some = [first for first in sorted(self.mine[who]) if rnd.random() < 0.6]
        if who in MAKERS:
            rows = rnd.randint(1, 4)
            answer = drive.put(who, rows=rows, tokens=rnd.randint(1, 9))
            assert isinstance(answer, ops.Granted | ops.Wait)
        elif rnd.random() < 0.5 or not some:
            columns = ("x", "reward") if who in TRAINERS else ("x",)
            if who in TRAINERS and rnd.random() < 0.3:
                answer = drive.draw(who, self.draws, TRAINERS.index(who), rows=4, columns=list(columns), seconds=6.0)
                self.draws += rnd.random() < 0.3
            else:
                answer = drive.lease(who, *columns, rows=rnd.randint(4, 9), seconds=rnd.choice([2, 6]))
            if isinstance(answer, ops.Leased):
                assert not answer.ended
                self.mine[who] |= {given.first for given in answer.blocks}
        elif who in SCORERS and rnd.random() < 0.8:
            assert drive.fill(who, *some) == ops.Granted()
            self.mine[who] -= set(some)
        elif who in TRAINERS and rnd.random() < 0.5:
            drive.say(who, ops.Trained, stream="s", blocks=some, version=1)
        elif who in TRAINERS and rnd.random() < 0.1:
            drive.say(who, ops.Drop, stream="s", blocks=some, reason="whim")
            self.mine[who] -= set(some)
        elif who not in SCORERS and rnd.random() < 0.7:
            answer = drive.acknowledge(who, *some)
            assert isinstance(answer, ops.Granted) or (who in TRAINERS and answer.kind == "lost")
            self.mine[who] -= set(some)
        else:
            drive.say(who, ops.GiveBack, stream="s", blocks=some)
            self.mine[who] -= set(some)

    def say_again(self) -> None:
        """An answer was lost: the newest operation comes again, as it was."""
        op, _ = self.drive.log[-1]
        if op.seq and op.life == self.drive.lives[op.who] and op.seq == self.drive.seqs[op.who]:
            before = self.drive.ledger.state()
            answer, events = self.drive.ledger.apply(op, self.drive.now)
            assert not isinstance(answer, ops.Refused)
            assert events == []
            assert self.drive.ledger.state() == before

    def check(self) -> None:
        drive = self.drive
        for event in drive.events[self.seen :]:
            self.model.see(event)
        self.seen = len(drive.events)
        live = {block.first: block.rows for block in drive.ledger.live_refs()}
        assert live == {first: self.model.produced[first] for first in self.model.live}, "a row was lost"
        figures = drive.figures()
        assert figures["rows"] == sum(live.values())
        again = Ledger.from_state(drive.rules, drive.ledger.state()).figures("s")["s"]
        assert {k: v for k, v in figures.items() if k not in ("waiting", "oldest_s")} == {
            k: v for k, v in again.items() if k not in ("waiting", "oldest_s")
        }

    def finish(self) -> None:
        """All processes begin anew; whatever is left is scored, trained and acknowledged."""
        drive = self.drive
        for who in EVERYBODY:
            drive.hello(who)
            self.mine[who].clear()
        self.check()
        while firsts := drive.take("score.0", rows=8):
            drive.fill("score.0", *firsts)
        while firsts := drive.take("train.0", "x", "reward", rows=8):
            drive.say("train.0", ops.Trained, stream="s", blocks=firsts, version=2)
            drive.acknowledge("train.0", *firsts)
        self.check()
        assert self.model.live == set()
        assert self.model.holder == {}
        drive.close(*MAKERS, *SCORERS)
        assert drive.lease("train.1", "reward").ended


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_lost_cleared_twice_or_held_by_two(make_driver, seed):
    world = World(make_driver(capacity_rows=CAPACITY), seed)
    for _ in range(500):
        world.step()
    assert len(world.model.gone) > 12
    world.finish()
    drive = world.drive
    assert drive.replay().state() == drive.ledger.state()
    state, done = world.random.choice(world.parts)
    again = Ledger.from_state(drive.rules, state)
    for op, now in drive.log[done:]:
        again.apply(op, now)
    assert again.state() == drive.ledger.state()


@pytest.mark.parametrize("seed", range(10))
def test_credits_are_never_above_the_capacity_but_for_a_first_block(make_driver, seed):
    drive, rnd = make_driver(capacity_rows=CAPACITY, capacity_bytes=2000), random.Random(seed)
    maker: dict[int, str] = {}
    served = dict.fromkeys(MAKERS, 0)
    for _ in range(600):
        who, rows, first = rnd.choice(MAKERS), rnd.randint(1, 4), drive.first
        before = drive.figures()
        had_none = who not in {maker[block.first] for block in drive.ledger.live_refs()}
        if drive.put(who, rows=rows) == ops.Granted():
            maker[first] = who
            served[who] += 1
            fits = before["untrained_rows"] + rows <= CAPACITY and before["untrained_bytes"] + rows * 100 <= 2000
            assert fits or had_none
        if rnd.random() < 0.3 and (taken := drive.take("train.0")):
            drive.acknowledge("train.0", *taken)
    # Nobody starves.
    assert min(served.values()) > 0.35 * sum(served.values())
