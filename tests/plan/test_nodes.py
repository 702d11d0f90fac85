from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.plan.nodes import pick_gpus


def test_one_domain_before_a_row_before_the_lowest():
    assert pick_gpus([0, 1, 2, 3], None, 2) == (0, 1)
    assert pick_gpus([1, 3, 4, 6], None, 2) == (3, 4)
    assert pick_gpus([0, 1, 2, 3], (0, 1, 1, 1), 2) == (1, 2)
    assert pick_gpus([0, 1, 2, 3], (0, 1, 0, 1), 2) == (0, 2)
    assert pick_gpus([0, 1], None, 3) is None


@given(st.sets(st.integers(0, 7)), st.lists(st.integers(0, 3), min_size=8, max_size=8), st.integers(1, 8))
def test_picked_gpus_are_free_and_in_one_domain_where_one_has_enough(free, numa, size):
    picked = pick_gpus(sorted(free), numa, size)
    if len(free) < size:
        assert picked is None
        return
    assert picked is not None
    assert len(set(picked)) == size
    assert set(picked) <= free
    if any(sum(numa[p] == domain for p in free) >= size for domain in range(4)):
        assert len({numa[p] for p in picked}) == 1
