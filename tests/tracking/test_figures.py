import itertools
from collections.abc import Callable

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.figures import Figures, moving_mean, number
from hpcrl.tracking.journal import RunJournalReader


def of(run: RunDirectory) -> Figures:
    figures = Figures()
    for attempt, writer, record in RunJournalReader(run).read():
        figures.add(attempt, writer, record)
    return figures


def step(number: int, **more: object) -> dict:
    return {"t": 100.0 + number, "kind": "step", "step": number, **more}


def test_a_step_has_its_figures_and_what_follows_from_them(trained: RunDirectory) -> None:
    rows = of(trained).steps()
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[2].get("tokens_per_s") == pytest.approx(80 / 4.0)
    assert rows[2].get("version_lag") == 0.5
    assert rows[2].get("response_tokens") == 13.0
    assert rows[2].get("kind") is None
    assert rows[2].split == {"wait": 2.5, "train": 1.0, "publish": 0.25, "rest": 0.25}


def test_outcomes_are_summed_over_replicas_and_blocks(trained: RunDirectory) -> None:
    figures = of(trained)
    assert figures.steps()[2].outcomes == {"right": 6, "wrong": 6, "unparseable": 2, "timeout": 0}
    assert figures.totals() == {"right": 2 * (1 + 2 + 3 + 0 + 1 + 2), "wrong": 36, "unparseable": 12, "timeout": 0}


def test_sampled_sums_and_served_versions(trained: RunDirectory) -> None:
    figures = of(trained)
    assert figures.sampled.samples == 48
    assert figures.sampled.seconds == 12.0
    assert figures.served["inference.0", 3].hash == f"{3:016x}"
    assert figures.phases["trainer.0"].name == "step"
    assert figures.phases["trainer.0"].step == 6


def test_the_order_between_records_does_not_matter() -> None:
    records = [
        (1, "trainer.0", step(1, reward=0.1)),
        (2, "trainer.0", step(1, reward=0.9)),
        (1, "reward.0", {"kind": "outcomes", "step": 1, "right": 1, "t": 1.0}),
        (2, "reward.0", {"kind": "outcomes", "step": 1, "right": 5, "t": 2.0}),
        (1, "trainer.0", {"kind": "phase", "name": "old", "t": 1.0}),
    ]
    tables = []
    for order in itertools.permutations(records):
        figures = Figures()
        for record in order:
            figures.add(*record)
        tables.append((figures.steps(), figures.totals()))
    assert all(table == tables[0] for table in tables)
    rows, totals = tables[0]
    assert [(row.attempt, row.get("reward"), dict(row.outcomes)) for row in rows] == [(2, 0.9, {"right": 5})]
    assert totals == {"right": 5}


def test_a_later_attempt_undoes_the_steps_after_the_one_it_went_on_from(
    run: RunDirectory, record_step: Callable[..., None]
) -> None:
    first = run.new_attempt()
    for n in range(1, 6):
        record_step(first, n)
    second = run.new_attempt()
    record_step(second, 3, reward=0.99)
    rows = of(run).steps()
    assert [(row.step, row.attempt) for row in rows] == [(1, 1), (2, 1), (3, 2)]
    assert rows[-1].get("reward") == 0.99


def test_missing_and_odd_fields_are_left_out() -> None:
    figures = Figures()
    for record in (
        {"kind": "step"},
        {"kind": "step", "step": None, "reward": 1.0},
        {"kind": "step", "step": 1},
        {"kind": "step", "step": 2, "reward": None, "loss": "nan", "step_s": 0, "trained_tokens": 5, "flag": True},
        {"kind": "outcomes", "right": 1},
        {"kind": "outcomes", "step": 2, "right": None, "wrong": 2},
        {"kind": "phase"},
        {"kind": "served", "load_s": 1.0},
        {"kind": "sampled", "tokens": None},
        {"kind": "news", "x": 1},
        {},
    ):
        figures.add(1, "trainer.0", record)
    rows = figures.steps()
    assert [dict(row.values) for row in rows] == [{}, {"step_s": 0.0, "trained_tokens": 5.0}]
    assert rows[1].outcomes == {"wrong": 2}
    assert rows[1].split == {}
    assert figures.first_t is None


def test_moving_mean_skips_what_is_missing() -> None:
    assert moving_mean([1.0, None, 3.0, 5.0], 2) == [1.0, 1.0, 3.0, 4.0]
    assert moving_mean([None], 3) == [None]


@pytest.mark.parametrize("value", [None, True, "1", float("nan"), float("inf"), [1]])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    assert number(value) is None
