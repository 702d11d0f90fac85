from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.roles.collect import StepCollector


def test_a_step_waits_for_its_own_batch_and_keeps_what_came_early():
    collector: StepCollector[str] = StepCollector(2)
    collector.add(2, "c")
    collector.add(0, "a")
    assert collector.take(0) is None
    collector.add(1, "b")
    assert collector.take(0) == ["a", "b"]
    assert collector.ready == 1


def test_lateness_lets_later_prompts_stand_in_once():
    collector: StepCollector[int] = StepCollector(2, lateness=1)
    for prompt in (1, 2):
        collector.add(prompt, prompt)
    assert collector.take(0) == [1, 2]
    collector.add(3, 3)
    collector.add(4, 4)
    assert collector.take(1) is None, "prompt 0 is due at step 1"
    collector.add(0, 0)
    assert collector.take(1) == [0, 3]
    assert collector.taken_below == 4


def test_the_last_step_takes_what_is_left():
    collector: StepCollector[int] = StepCollector(4)
    collector.add(0, 0)
    assert collector.take(0) is None
    assert collector.take(0, ended=True) == [0]
    assert collector.take(1, ended=True) == []


def test_a_prompt_that_comes_twice_is_refused():
    collector: StepCollector[int] = StepCollector(1, first_prompt=3)
    collector.add(3, 3)
    for prompt in (3, 2):
        with pytest.raises(ValueError, match="twice"):
            collector.add(prompt, prompt)
    collector.take(3)
    with pytest.raises(ValueError, match="twice"):
        collector.add(3, 3)


@given(size=st.integers(1, 5), steps=st.integers(1, 8), lateness=st.integers(0, 3), seed=st.integers(0, 1 << 20))
def test_every_prompt_is_trained_once_and_never_later_than_allowed(size: int, steps: int, lateness: int, seed: int):
    collector: StepCollector[int] = StepCollector(size, lateness=lateness)
    arrivals = list(range(size * steps))
    random.Random(seed).shuffle(arrivals)
    trained: list[int] = []
    for step in range(steps):
        while (groups := collector.take(step, ended=not arrivals)) is None:
            prompt = arrivals.pop()
            collector.add(prompt, prompt)
        assert groups == sorted(groups)
        assert all(step - prompt // size <= lateness for prompt in groups)
        trained += groups
    assert sorted(trained) == list(range(size * steps))


def test_a_part_waits_for_its_groups_and_no_more():
    collector: StepCollector[int] = StepCollector(4, lateness=4)
    collector.add(5, 5)
    assert collector.take(0, part=0, parts=2) is None
    collector.add(3, 3)
    assert collector.take(0, part=0, parts=2) == [3, 5]
    assert collector.take(0, part=1, parts=2) is None
    collector.add(0, 0)
    assert collector.take(0, part=1, parts=2, ended=True) == [0]
    assert collector.take(1, part=0, parts=2, ended=True) == []


@given(
    size=st.integers(1, 6),
    steps=st.integers(1, 8),
    lateness=st.integers(0, 3),
    parts=st.integers(1, 6),
    seed=st.integers(0, 1 << 20),
)
def test_in_parts_every_prompt_is_trained_once_and_never_later_than_allowed(
    size: int, steps: int, lateness: int, parts: int, seed: int
):
    parts = min(parts, size)
    collector: StepCollector[int] = StepCollector(size, lateness=lateness)
    arrivals = list(range(size * steps))
    random.Random(seed).shuffle(arrivals)
    trained: list[int] = []
    for step in range(steps):
        for part in range(parts):
            while (groups := collector.take(step, ended=not arrivals, part=part, parts=parts)) is None:
                prompt = arrivals.pop()
                collector.add(prompt, prompt)
            assert all(step - prompt // size <= lateness for prompt in groups)
            trained += groups
        assert len(trained) == size * (step + 1)
    assert sorted(trained) == list(range(size * steps))
