"""The token of a ring: who has it, who gets it next, and what becomes of processes that die or fall silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.rules import RingRules, Rules, group_of
from hpcrl.dataplane.ledger.turns import AskTurn, AwaitTurn, EndTurn, Turn

PROCESSES = {"serve": 2, "train": 2, "judge": 1, "other": 1}
RULES = Rules(
    processes=PROCESSES,
    streams={},
    announcers={},
    rings={"gpus": RingRules("gpus", members=("serve", "train", "judge"), fallback="serve")},
)
EVERYBODY = [f"{group}.{rank}" for group in ("serve", "train", "judge") for rank in range(PROCESSES[group])]


@pytest.fixture
def ring(driver_of: Callable[..., Any]) -> Any:
    return RingDriver(driver_of(RULES))


class RingDriver:
    """Processes that take turns, on one ledger.

    Attributes:
        turns: by process, the epoch of the turn that it believes it has.
    """

    def __init__(self, drive: Any) -> None:
        self.drive = drive
        self.turns: dict[str, int] = {}

    @property
    def record(self) -> Any:
        return self.drive.ledger._books.record.rings["gpus"]

    def ask(self, who: str, seconds: float = 30.0) -> Any:
        return self.drive.say(who, AskTurn, ring="gpus", seconds=seconds, host=f"{who}.host")

    def look(self, who: str, epoch: int = 0) -> Any:
        answer = self.drive.say(who, AwaitTurn, ring="gpus", epoch=epoch)
        if isinstance(answer, Turn) and answer.settled and not epoch:
            self.turns[who] = answer.epoch
        return answer

    def take(self, who: str) -> Any:
        assert self.ask(who) == ops.Granted()
        return self.look(who)

    def leave(self, who: str, **said: Any) -> Any:
        return self.drive.say(who, EndTurn, ring="gpus", epoch=self.turns.pop(who), **said)

    def called(self, who: str) -> bool:
        answer = self.look(who, self.turns[who])
        assert isinstance(answer, Turn), answer
        return answer.settled


def test_the_fallback_has_it_until_somebody_asks_and_gets_it_back(ring):
    assert ring.take("serve.0").settled
    assert ring.take("serve.1").settled
    assert not ring.called("serve.0")
    waiting = ring.take("train.0")
    assert not waiting.settled
    assert (waiting.holder, waiting.inside) == ("serve", {"serve.0": "serve.0.host", "serve.1": "serve.1.host"})
    assert ring.called("serve.0")
    assert ring.called("serve.1")
    ring.drive.now += 2
    ring.leave("serve.0", freed=5, left=1, took_s=0.25)
    assert not ring.look("train.0").settled, "half of the group has not let go"
    ring.leave("serve.1", freed=7, left=1, took_s=0.5)
    got = ring.look("train.0")
    assert (got.settled, got.epoch, got.giver, got.freed, got.left, got.gave_s) == (True, 2, "serve", 12, 2, 2.0)
    assert not ring.take("serve.0").settled
    ring.leave("train.0", freed=9, took_s=0.75, news='{"version": 1}')
    back = ring.look("serve.0")
    assert (back.settled, back.epoch, back.giver, back.news, back.gave_s) == (True, 3, "train", '{"version": 1}', 0.75)


def test_groups_get_it_in_the_order_in_which_they_asked(ring):
    ring.take("serve.0")
    ring.take("judge.0")
    ring.take("train.0")
    ring.leave("serve.0")
    assert ring.take("serve.0").holder == "judge"
    assert ring.look("judge.0").settled
    ring.leave("judge.0")
    assert not ring.take("judge.0").settled, "train asked before"
    assert ring.look("train.0").settled
    ring.leave("train.0")
    assert ring.look("judge.0").settled, "the fallback comes last"
    ring.leave("judge.0")
    assert ring.look("serve.0").settled


def test_a_late_process_of_the_group_takes_part_and_each_does_once(ring):
    assert ring.take("train.0").settled
    ring.take("serve.0")
    assert ring.take("train.1").epoch == 1
    assert ring.look("train.1").settled
    ring.leave("train.0")
    assert not ring.take("train.0").settled, "it had its part of this turn"
    ring.leave("train.1")
    assert ring.look("train.0").settled
    assert ring.turns["train.0"] == 2


def test_the_fallback_is_not_called_back_in_while_others_ask(ring):
    ring.take("serve.0")
    ring.take("train.0")
    assert not ring.take("serve.1").settled
    ring.leave("serve.0")
    assert ring.look("train.0").settled


def test_a_holder_that_begins_a_new_life_has_let_go(ring):
    ring.take("serve.0")
    ring.take("train.0")
    ring.drive.hello("serve.0")
    assert ring.look("train.0").settled
    assert ring.take("serve.0").holder == "train"


def test_a_process_that_is_started_again_takes_part_in_its_groups_turn(ring):
    ring.take("train.0")
    ring.take("train.1")
    ring.take("serve.0")
    ring.drive.hello("train.1")
    assert ring.take("train.1").settled
    ring.leave("train.0")
    ring.leave("train.1")
    assert ring.look("serve.0").settled


def test_a_holder_that_is_silent_for_too_long_is_fenced(ring):
    ring.take("serve.0")
    ring.take("train.0")
    ring.drive.sleep(31, "train.0")
    assert ring.look("train.0").settled
    assert ring.look("serve.0", ring.turns["serve.0"]).kind == "stale"
    refused = ring.leave("serve.0")
    assert refused.kind == "stale"
    assert "the turn of serve.0 in ring 'gpus', epoch 1, is over; train has it, epoch 2" in refused.reason
    assert ring.record.holder == "train"
    ring.take("serve.0")
    ring.leave("train.0")
    assert ring.look("serve.0").epoch == 3


def test_who_asks_and_falls_silent_is_passed_over(ring):
    ring.take("serve.0")
    ring.take("judge.0")
    ring.take("train.0")
    ring.drive.sleep(31, "train.0", "serve.0")
    assert ring.look("judge.0").kind == "stale"
    ring.leave("serve.0")
    assert ring.look("train.0").settled


def test_a_call_is_off_when_whoever_asked_is_gone(ring):
    ring.take("serve.0")
    ring.take("judge.0")
    assert ring.called("serve.0")
    ring.drive.sleep(31, "serve.0")
    assert not ring.called("serve.0")


def test_an_older_epoch_and_an_older_life_change_nothing(ring):
    ring.take("train.0")
    ring.turns["train.0"] -= 1
    assert ring.leave("train.0").kind == "stale"
    assert ring.record.holder == "train"


def test_asking_again_is_no_error(ring):
    ring.take("train.0")
    assert ring.take("train.0").epoch == 1
    ring.take("serve.0")
    ring.take("serve.0")
    assert list(ring.record.asks) == ["serve.0"]


def test_rings_and_groups_that_are_none_are_refused(ring):
    assert ring.drive.say("other.0", AskTurn, ring="gpus", seconds=1.0, host="").kind == "schema"
    assert ring.drive.say("serve.0", AskTurn, ring="cards", seconds=1.0, host="").kind == "schema"
    assert ring.look("serve.0").kind == "stale"


def check(ring: RingDriver, before: int, asked: list[str]) -> None:
    """What holds at any time."""
    record = ring.record
    assert bool(record.inside) == bool(record.holder)
    assert {group_of(who) for who in record.inside} <= {record.holder}
    assert not record.inside.keys() & record.asks.keys()
    # Whoever asked and did not die still stands in line, or has it.
    assert set(asked) == record.inside.keys() | record.asks.keys()
    first = next((group_of(who) for who in record.asks if group_of(who) != "serve"), "")
    assert bool(record.called_t) == (record.holder == "serve" and bool(first))
    assert record.holder or not record.asks, "nobody has it though somebody asks"
    assert record.epoch >= before
    # Those that believe that they have it, and whose turn is not over, are of one group.
    believers = {who for who, epoch in ring.turns.items() if epoch == record.epoch and who in record.inside}
    assert len({group_of(who) for who in believers}) <= 1
    assert len(ring.drive.ledger.state()) < 4000


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "look", "leave", "die", "silence", "desk"]), st.sampled_from(EVERYBODY)), max_size=60
)


@given(steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_one_group_has_it_and_nobody_is_forgotten(driver_of, steps):
    ring = RingDriver(driver_of(RULES))
    drive, line = ring.drive, dict[str, None]()
    for what, who in steps:
        epoch = ring.record.epoch
        if what == "ask":
            ring.ask(who)
            line[who] = None
        elif what == "look":
            ring.look(who)
        elif what == "leave" and who in ring.turns:
            valid = ring.turns[who] == ring.record.epoch and who in ring.record.inside
            assert (ring.leave(who) == ops.Granted()) == valid
            if valid:
                line.pop(who, None)
        elif what == "die":
            ring.turns.pop(who, None)
            line.pop(who, None)
            drive.hello(who)
        elif what == "silence":
            drive.sleep(31, *(other for other in EVERYBODY if other != who))
            line.pop(who, None)
        elif what == "desk":
            drive.ledger = Ledger.from_state(RULES, drive.ledger.state())
            drive.sleep(1, *EVERYBODY)
        check(ring, epoch, list(line))
    assert drive.replay().state() == drive.ledger.state()
    # Whoever waits gets it, on-demand groups in the order of asking.
    expected = list(dict.fromkeys(group_of(who) for who in ring.record.asks if group_of(who) != "serve"))
    served = []
    for _ in range(2 * len(EVERYBODY)):
        holder = ring.record.holder
        for who in list(ring.record.inside):
            ring.look(who)
            ring.leave(who)
        if not ring.record.holder:
            break
        if ring.record.holder not in ("serve", holder):
            served.append(ring.record.holder)
    assert not ring.record.asks
    assert served[: len(expected)] == expected
