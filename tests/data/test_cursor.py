from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data.cursor import Position, PromptOrder, batch_numbers, batch_of

sizes = st.integers(1, 200)
seeds = st.integers(0, 2**64 - 1)


@given(sizes, seeds, st.integers(0, 5), st.booleans())
def test_every_epoch_holds_every_item_once(size, seed, epoch, shuffle):
    order = PromptOrder(size, seed, shuffle)
    positions = [order.position(k) for k in range(epoch * size, (epoch + 1) * size)]
    assert sorted(p.index for p in positions) == list(range(size))
    assert {p.epoch for p in positions} == {epoch}


@given(sizes, seeds, st.integers(0, 10_000))
def test_position_does_not_depend_on_what_was_asked_before(size, seed, number):
    resumed = PromptOrder(size, seed).position(number)
    walked = PromptOrder(size, seed)
    for k in range(max(0, number - 5), number):
        walked.position(k)
    assert walked.position(number) == resumed


@given(st.integers(0, 500), st.integers(1, 40))
def test_batches_cover_every_prompt_exactly_once(total, per_step):
    count = -(-total // per_step)
    numbers = [k for b in range(count) for k in batch_numbers(b, per_step, total)]
    assert numbers == list(range(total))
    assert all(batch_of(k, per_step) == b for b in range(count) for k in batch_numbers(b, per_step, total))
    assert len(batch_numbers(count, per_step, total)) == 0


def test_order_is_the_same_on_every_platform_and_release():
    assert [PromptOrder(8, seed=3).position(k).index for k in range(16)] == [6, 1, 5, 2, 7, 4, 3, 0, 7, 3, 5, 6, 4, 0, 2, 1]


def test_epochs_and_seeds_differ():
    order = PromptOrder(100, seed=0)
    first, second = ([order.position(e * 100 + k).index for k in range(100)] for e in (0, 1))
    assert first != second
    assert first != [PromptOrder(100, seed=1).position(k).index for k in range(100)]


def test_without_shuffle_the_dataset_order_repeats():
    assert [PromptOrder(3, 0, False).position(k) for k in (0, 2, 3, 7)] == [
        Position(0, 0),
        Position(0, 2),
        Position(1, 0),
        Position(2, 1),
    ]


@pytest.mark.parametrize("make", [lambda: PromptOrder(0), lambda: PromptOrder(3, -1), lambda: PromptOrder(3).position(-1)])
def test_impossible_orders_are_refused(make):
    with pytest.raises(ValueError, match=r"empty|outside|negative"):
        make()
