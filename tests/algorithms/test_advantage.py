import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.algorithms.advantage import group_advantages

rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30)


def test_against_the_formula():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    groups = np.array([7, 7, 7, 2, 2, 2])
    expected = [(r - g.mean()) / (g.std(ddof=1) + 1e-4) for g in (rewards[:3], rewards[3:]) for r in g]
    np.testing.assert_allclose(group_advantages(rewards, groups).values, expected, rtol=1e-6)


def test_without_the_standard_deviation():
    result = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4, int), divide_by_std=False)
    np.testing.assert_allclose(result.values, [0.75, -0.25, -0.25, -0.25])


@given(rows)
def test_groups_without_a_signal_are_flagged_and_zero(pairs):
    groups, rewards = np.array([g for g, _ in pairs]), np.array([r for _, r in pairs])
    result = group_advantages(rewards, groups)
    for group in np.unique(groups):
        member = groups == group
        assert result.has_signal[member].all() == (len(set(rewards[member])) > 1)
        assert abs(result.values[member].sum()) < 1e-4
    assert (result.values[~result.has_signal] == 0).all()


@given(rows, st.randoms())
def test_the_order_of_samples_does_not_matter(pairs, random):
    groups, rewards = np.array([g for g, _ in pairs]), np.array([r for _, r in pairs])
    order = list(range(len(pairs)))
    random.shuffle(order)
    straight, shuffled = group_advantages(rewards, groups), group_advantages(rewards[order], groups[order])
    np.testing.assert_allclose(shuffled.values, straight.values[order], atol=1e-6)


def test_a_reward_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="reward of sample 1 is nan"):
        group_advantages(np.array([0.0, np.nan]), np.zeros(2, int))
    with pytest.raises(ValueError, match="of one length"):
        group_advantages(np.zeros(2), np.zeros(3, int))
