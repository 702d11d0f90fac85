"""Histories spoilt at random: each is reported, or says the same as the right one did."""

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.verify.intervals import IntervalSet
from hpcrl.testing.ledger_check import checked
from hpcrl.testing.ledger_run import LedgerRun, Left, Shape

SHAPE = Shape(steps=12, attempts=2)
Item = tuple[int, int, Event]
change = msgspec.structs.replace


def group(event: Event) -> str:
    return event.who.partition(".")[0]


def later(events: list[Item], index: int, *, of_group: bool = False) -> list[Event]:
    """What happens to the same rows after an event, in its attempt or by a trainer's word of any."""
    attempt, _, event = events[index]
    blocks = set(event.blocks)
    return [
        e
        for a, _, e in events[index + 1 :]
        if a == attempt and blocks & set(e.blocks) and (not of_group or group(e) == group(event))
    ]


def undone(events: list[Item], index: int) -> bool:
    """Whether a training event's rows were all trained again or never acknowledged."""
    left = dict.fromkeys(events[index][2].blocks)
    for _, _, event in events[index + 1 :]:
        for block in event.blocks:
            if event.kind == "trained":
                left.pop(block, None)
            if event.kind == "acknowledged" and block in left:
                return False
    return True


def deleted_in_silence(left: Left, index: int) -> bool:
    """Whether the history without an event is one that a ledger might have made just so."""
    events = left.events
    attempt, _, event = events[index]
    after = later(events, index)
    of_group = later(events, index, of_group=True)
    match event.kind:
        case "life":
            return not any(e.kind != "life" and (e.who, e.life) == (event.who, event.life) for _, _, e in events[index + 1 :])
        case "leased":
            before = {block for a, _, e in events[:index] if a == attempt and group(e) == group(event) for block in e.blocks}
            return not of_group or (set(event.blocks) <= before and of_group[0].kind in ("filled", "dropped"))
        case "given_back" | "expired":
            # The lease of a life that has ended ends with it; and whoever of the group fills first, fills.
            newer = any(e.kind == "life" and e.who == event.who and e.life > event.life for a, _, e in events if a == attempt)
            return newer or not of_group or all(e.kind == "filled" for e in of_group)
        case "filled":
            # A snapshot may have had the columns.
            restored = {block for a, _, e in events if a == attempt and e.reason == "restored" for block in e.blocks}
            return set(event.blocks) <= restored or not any(group(e) == "trainer" for e in after)
        case "produced":
            # Nobody had them, and others of their prompts were trained, or none.
            return not after
        case "dropped":
            return True
        case "trained":
            return undone(events, index) or event.version > (left.cursor or Cursor()).step
    return False


def commute(a: Event, b: Event) -> bool:
    """Whether two events that follow each other may as well come the other way round."""
    if a.kind == "life" or b.kind == "life":
        return a.who != b.who or (a.kind == "life" and b.kind in ("given_back", "expired"))
    if a.kind == b.kind == "trained" and a.version != b.version:
        return False
    if not set(a.blocks) & set(b.blocks):
        return True
    ends = {"produced", "cleared", "dropped"}
    return group(a) != group(b) and not ends & {a.kind, b.kind} and "filled" not in (a.kind, b.kind)


@pytest.mark.parametrize("seed", range(3))
def test_a_history_that_lacks_an_event_is_reported_or_could_have_been(seed):
    left = LedgerRun(seed, SHAPE).run()
    reported = 0
    for index in range(len(left.events)):
        report = checked(left, SHAPE, left.events[:index] + left.events[index + 1 :])
        reported += not report.clean
        assert not report.clean or deleted_in_silence(left, index), left.events[index]
    assert reported > len(left.events) / 3


@pytest.mark.parametrize("seed", range(3))
def test_an_event_that_stands_there_twice_is_reported(seed):
    left = LedgerRun(seed + 10, SHAPE).run()
    for index, (_, _, event) in enumerate(left.events):
        report = checked(left, SHAPE, left.events[: index + 1] + left.events[index:])
        assert not report.clean, event


@pytest.mark.parametrize("seed", range(3))
def test_events_in_the_wrong_order_are_reported_or_might_be_in_that_order(seed):
    left = LedgerRun(seed + 20, SHAPE).run()
    for index in range(len(left.events) - 1):
        (a, _, first), (b, _, second) = left.events[index : index + 2]
        if a == b:
            events = [*left.events[:index], left.events[index + 1], left.events[index], *left.events[index + 2 :]]
            report = checked(left, SHAPE, events)
            assert not report.clean or commute(first, second), (first, second)


@pytest.mark.parametrize("seed", range(3))
def test_an_event_of_another_group_or_of_unknown_rows_is_reported(seed):
    left, draw = LedgerRun(seed + 30, SHAPE).run(), random.Random(seed)
    for index, (attempt, number, event) in enumerate(left.events):
        if not event.blocks:
            continue
        (first, rows), *others = event.blocks
        ways = [change(event, blocks=[(first + 1, rows), *others]), change(event, blocks=[(first, rows + 1), *others])]
        if event.kind in ("filled", "trained", "acknowledged", "given_back", "expired"):
            ways.append(change(event, who=draw.choice(["rollout.0", "reward.7", "trainer.7"])))
            if ways[-1].who.startswith(group(event)):
                ways.pop()
        for other in ways:
            events = [*left.events[:index], (attempt, number, other), *left.events[index + 1 :]]
            silent = event.kind == "produced" and not later(left.events, index)
            assert silent or not checked(left, SHAPE, events).clean, (event, other)


def test_a_trainer_that_forgets_what_it_saved_is_reported():
    """The trainer's saves hold more than, or other than, what was trained."""
    left = LedgerRun(1, SHAPE).run()
    cursor = left.cursor
    assert cursor is not None
    for wrong in (
        Cursor(cursor.step, cursor.prompts + 2, cursor.beyond),
        Cursor(cursor.step, cursor.prompts - 2, cursor.beyond),
        Cursor(cursor.step - 2, cursor.prompts, cursor.beyond),
        Cursor(cursor.step, cursor.prompts, cursor.beyond | {900}),
    ):
        assert not checked(replace(left, cursor=wrong), SHAPE).clean, wrong
    assert not checked(replace(left, steps={**left.steps, 900: [1]}), SHAPE).clean
    assert not checked(replace(left, steps={**left.steps, 2: [1, 2, 900]}), SHAPE).clean


def test_rows_of_an_earlier_attempt_come_back_only_when_they_are_restored():
    shape = replace(SHAPE, keep=1.0, attempts=4, faults=0.1)
    for seed in range(30):
        left = LedgerRun(seed, shape).run()
        for index, (_, _, event) in enumerate(left.events):
            if event.reason == "restored":
                report = checked(left, shape, left.events[:index] + left.events[index + 1 :])
                assert report.clean == (not later(left.events, index))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=40), st.integers(0, 70), st.integers(0, 70))
def test_intervals_are_a_set(spans, start, end):
    found, truth = IntervalSet(), set()
    for first, count in spans:
        found.add(first, count)
        truth |= set(range(first, first + count))
    assert list(found) == sorted(truth)
    assert len(found) == len(truth)
    assert [n for n in range(80) if n in found] == sorted(truth)
    assert list(found.missing(start, end)) == [n for n in range(start, end) if n not in truth]
    assert list(found.above(start)) == [n for n in sorted(truth) if n >= start]
    assert found.intervals == sum(1 for n in truth if n - 1 not in truth)
