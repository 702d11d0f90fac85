"""The checker against histories of a real ledger: right ones pass, and every way to spoil one is found."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.verify.checker import Checker
from hpcrl.dataplane.verify.commits import Commits
from hpcrl.dataplane.verify.found import RULES
from hpcrl.dataplane.verify.prompts import PromptSum
from hpcrl.dataplane.verify.report import Report
from hpcrl.testing.ledger_check import checked
from hpcrl.testing.ledger_run import STREAM, LedgerRun, Left, Shape

SHAPE = Shape()
Item = tuple[int, int, Event]
change = msgspec.structs.replace


@pytest.fixture(scope="module")
def calm() -> Left:
    """One attempt without a fault."""
    return LedgerRun(1, replace(SHAPE, attempts=1, faults=0.0, steps=12)).run()


@pytest.mark.parametrize(
    "shape", [SHAPE, replace(SHAPE, window=1, ranks=1), replace(SHAPE, window=2, faults=0.2, attempts=5, keep=1.0)]
)
def test_a_right_history_passes(shape):
    kinds = set()
    for seed in range(12):
        left = LedgerRun(seed, shape).run()
        report = checked(left, shape)
        assert (report.violations, report.missing) == ((), ()), seed
        kinds |= {event.kind for _, _, event in left.events}
        figures = report.streams[STREAM]
        assert figures.settled == SHAPE.samples * sum(map(len, left.steps.values()))
        assert figures.steps == SHAPE.steps
    assert kinds >= {"life", "produced", "filled", "leased", "given_back", "trained", "acknowledged", "cleared"}


def test_every_beginning_of_a_right_history_passes_while_the_run_goes_on():
    left = LedgerRun(3, SHAPE).run()
    for stop in range(0, len(left.events), 7):
        # An acknowledgement and the clearing after it are written together.
        if stop and left.events[stop - 1][2].kind == "acknowledged":
            stop += 1
        report = checked(Left(), SHAPE, left.events[:stop], over=False)
        assert report.violations == (), stop


# One way, at least, to break each rule: from the events to the events and the row to blame.


def at(events: list[Item], kind: str, skip: int = 0, **fields: object) -> int:
    found = [i for i, (_, _, e) in enumerate(events) if e.kind == kind and all(getattr(e, n) == v for n, v in fields.items())]
    return found[skip]


def altered(events: list[Item], index: int, **fields: object) -> list[Item]:
    attempt, number, event = events[index]
    return [*events[:index], (attempt, number, change(event, **fields)), *events[index + 1 :]]


def without(events: list[Item], *indexes: int) -> list[Item]:
    return [item for index, item in enumerate(events) if index not in indexes]


def inserted(events: list[Item], index: int, **fields: object) -> list[Item]:
    """The event at an index once more, altered, right after it."""
    attempt, number, event = events[index]
    return [*events[: index + 1], (attempt, number, change(event, **fields)), *events[index + 1 :]]


def row(events: list[Item], index: int) -> int:
    return events[index][2].blocks[0][0]


def labelled(events: list[Item], index: int, **fields: list[int]) -> list[Item]:
    return altered(events, index, labels=change(events[index][2].labels, **fields))


def put_twice(events):
    index = at(events, "produced", 5)
    return inserted(events, index), row(events, index)


def put_by_another(events):
    index = at(events, "produced", 9)
    return altered(events, index, who="rollout.7", life=256), row(events, index)


def put_in_another_life(events):
    index = at(events, "produced", 5)
    return altered(events, index, life=300), row(events, index)


def never_put(events):
    index = at(events, "produced", 4)
    return without(events, index), row(events, index)


def act_of_a_former_life(events):
    index = at(events, "leased", 6, who="reward.0")
    attempt, number, event = events[index]
    life = (attempt, number, Event("life", event.t, "reward.0", event.life + 1))
    return [*events[: index - 1], life, *events[index - 1 :]], row(events, index)


def leased_to_two(events):
    index = at(events, "leased", 3, who="reward.0")
    return inserted(events, index, who="reward.1"), row(events, index)


def leased_after_filled(events):
    index = at(events, "filled", 3)
    attempt, number, event = events[index]
    again = (attempt, number, change(event, kind="leased", reason="text"))
    return [*events[: index + 1], again, *events[index + 1 :]], row(events, index)


def filled_without_a_lease(events):
    index = at(events, "filled", 3)
    lease = max(i for i in range(index) if events[i][2].kind == "leased" and events[i][2].blocks == events[index][2].blocks)
    return without(events, lease), row(events, index)


def acknowledged_by_another(events):
    index = at(events, "acknowledged", 2)
    return altered(events, index, who="reward.1"), row(events, index)


def trained_by_another(events):
    index = at(events, "trained", 5)
    return altered(events, index, who="reward.0"), row(events, index)


def given_back_by_another(events):
    index = at(events, "given_back")
    other = "reward.1" if events[index][2].who == "reward.0" else "reward.0"
    return altered(events, index, who=other), row(events, index)


def filled_twice(events):
    index = at(events, "filled", 2)
    return inserted(events, index), row(events, index)


def read_before_filled(events):
    index = at(events, "filled", 2)
    return without(events, index), row(events, index)


def trained_twice(events):
    index = at(events, "trained", 4)
    return inserted(events, index), row(events, index)


def trained_after_cleared(events):
    index, cleared = at(events, "trained", 0), at(events, "cleared")
    again = max(i for i, (_, _, e) in enumerate(events) if e.kind == "trained")
    attempt, number, event = events[again]
    assert cleared < again
    return [*events[: again + 1], (attempt, number, change(event, blocks=events[index][2].blocks)), *events[again + 1 :]], row(
        events, index
    )


def prompt_trained_twice(events):
    index, other = at(events, "produced", 4), at(events, "produced", 7)
    return labelled(events, other, prompts=events[index][2].labels.prompts), None


def prompt_in_part(events):
    index = at(events, "produced", 4)
    prompts = events[index][2].labels.prompts
    return labelled(events, index, prompts=[*prompts[:-1], prompts[0] + 10_000]), None


def cleared_unacknowledged(events):
    index = at(events, "acknowledged", 1)
    return without(events, index), row(events, index)


def cleared_untrained(events):
    index = at(events, "trained", 1)
    return without(events, index), row(events, index)


def never_cleared(events):
    index = at(events, "cleared", 1)
    return without(events, index), row(events, index)


def dropped_without_a_reason(events):
    index = at(events, "leased", 8, who="reward.0")
    attempt, number, event = events[index]
    return [*events[:index], (attempt, number, change(event, kind="dropped", reason="")), *events[index:]], row(events, index)


def training_undone(events):
    """After an acknowledgement the trainer goes on, in a new life, from an earlier save."""
    cleared = [i for i, (_, _, e) in enumerate(events) if e.kind == "cleared"][-1]
    attempt, number, event = events[cleared]
    newest = max(e.version for _, _, e in events[:cleared] if e.kind == "trained")
    blamed = next(e for _, _, e in events if e.kind == "trained" and e.version == newest)
    life, row_id = event.life + 1, (1 << 45) * 256 + 999_000_000 % (1 << 29)
    made = Labels([500] * 4, [newest] * 4, [newest] * 4, [1] * 4)
    who, block = "trainer.0", [(row_id, 4)]
    more = [
        Event("life", event.t, who, life),
        Event("produced", event.t, "rollout.9", 256, STREAM, block, made),
        Event("leased", event.t, who, life, STREAM, block, version=999),
        Event("trained", event.t, who, life, STREAM, block, version=newest - 1),
    ]
    return [*events[: cleared + 1], *((attempt, number, item) for item in more)], blamed.blocks[0][0]


def step_not_in_the_history(events):
    gone = events[at(events, "trained", 6)][2].version
    blocks = {b for _, _, e in events if e.kind == "trained" and e.version == gone for b in e.blocks}
    kept = [(a, n, change(e, blocks=[b for b in e.blocks if b not in blocks])) for a, n, e in events]
    return [item for item in kept if item[2].blocks or item[2].kind == "life"], None


def steps_exchanged(events):
    """The blocks of two steps change places; both were saved."""
    a, b = at(events, "trained", 2), at(events, "trained", 9)
    first, second = events[a][2].blocks, events[b][2].blocks
    return altered(altered(events, a, blocks=second), b, blocks=first), None


def version_falls(events):
    index = at(events, "trained", 8)
    return altered(events, index, version=events[index][2].version - 2), row(events, index)


def version_from_the_future(events):
    index = at(events, "produced", 6)
    return labelled(events, index, last_versions=[0, 0, 40, 0]), row(events, index) + 2


def trained_by_none(events):
    index = at(events, "trained", 2)
    return altered(events, index, version=0), row(events, index)


def too_old(events):
    index = next(i for i, (_, _, e) in enumerate(events) if e.kind == "produced" and min(e.labels.first_versions) > 5)
    first = events[index][2].labels.first_versions
    return labelled(events, index, first_versions=[*first[:3], 1]), row(events, index) + 3


MUTATIONS: list[tuple[str, Callable[[list[Item]], tuple[list[Item], int | None]]]] = [
    ("ids", put_twice),
    ("ids", put_by_another),
    ("ids", put_in_another_life),
    ("ids", never_put),
    ("lives", act_of_a_former_life),
    ("leases", leased_to_two),
    ("leases", leased_after_filled),
    ("held", filled_without_a_lease),
    ("held", acknowledged_by_another),
    ("held", trained_by_another),
    ("held", given_back_by_another),
    ("filled", filled_twice),
    ("filled", read_before_filled),
    ("once", trained_twice),
    ("once", trained_after_cleared),
    ("prompts", prompt_trained_twice),
    ("prompts", prompt_in_part),
    ("lost", cleared_unacknowledged),
    ("lost", cleared_untrained),
    ("lost", never_cleared),
    ("lost", dropped_without_a_reason),
    ("lost", training_undone),
    ("commits", step_not_in_the_history),
    ("commits", steps_exchanged),
    ("versions", version_falls),
    ("versions", version_from_the_future),
    ("versions", trained_by_none),
    ("lag", too_old),
    ("pacing", too_old),
]


@pytest.mark.parametrize(("rule", "mutate"), MUTATIONS, ids=[f"{rule}-{mutate.__name__}" for rule, mutate in MUTATIONS])
def test_a_broken_rule_is_found_and_its_row_named(calm, rule, mutate):
    shape = replace(SHAPE, attempts=1, steps=12)
    assert checked(calm, shape).clean
    events, blamed = mutate(calm.events)
    report = checked(calm, shape, events)
    found = [item for item in report.violations if item.rule == rule]
    assert found, report.violations
    assert blamed is None or blamed in {item.row for item in found}, found
    assert report.counts[rule] >= len(found)
    assert all(str(item) for item in report.violations)


def test_rows_without_prompt_numbers_are_compared_by_their_steps_alone(calm):
    events = [(a, n, change(event, labels=change(event.labels, prompts=[]))) for a, n, event in calm.events]

    def report(events: list[Item]) -> Report:
        checker = Checker({})
        checker.begin(1)
        for _, number, event in events:
            checker.see(number, event)
        steps = {step: PromptSum(prompts) for step, prompts in calm.steps.items()}
        return checker.finish(Commits(stream=STREAM, before=calm.cursor, after=calm.cursor, steps=steps))

    assert report(events).violations == ()
    last = at(events, "trained", -1)
    step = events[last][2].version
    kept = [item for item in events if item[2].kind != "trained" or item[2].version != step]
    assert {item.step for item in report(kept).violations if item.rule == "commits"} == {step}


def test_every_rule_has_a_mutation():
    assert {rule for rule, _ in MUTATIONS} == set(RULES)
