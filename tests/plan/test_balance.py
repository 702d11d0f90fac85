from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.plan.balance import longest_first


def test_the_dearest_goes_first_and_the_first_wins_a_tie():
    assert longest_first([1, 5, 4, 5], 2) == [[1, 2], [3, 0]]
    assert longest_first([3], 3) == [[0], [], []]
    assert longest_first([], 2) == [[], []]


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 8))
def test_every_thing_has_one_part_and_parts_differ_by_no_more_than_the_dearest(costs, parts):
    filled = longest_first(costs, parts)
    assert sorted(index for part in filled for index in part) == list(range(len(costs)))
    totals = [sum(costs[index] for index in part) for part in filled]
    assert max(totals) - min(totals) <= max(costs, default=0)
