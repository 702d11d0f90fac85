from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.dataplane.rowids import COUNTER_BITS, RowIds

lives = st.tuples(st.integers(0, 1023), st.integers(0, 255), st.integers(0, 65_535))


@given(st.lists(lives, min_size=2, max_size=5, unique=True), st.integers(1, 300))
def test_no_two_lives_share_an_id(made, rows):
    sources = [RowIds(attempt=a, incarnation=i, writer=w) for a, i, w in made]
    ids = np.concatenate([source.take(rows) for source in sources for _ in range(2)])
    assert ids.dtype == np.int64
    assert (ids >= 0).all()
    assert len(set(ids.tolist())) == len(ids)
    for number, source in enumerate(sources):
        own = [source.mine(int(row)) for row in ids]
        assert own == [2 * rows * number <= k < 2 * rows * (number + 1) for k in range(len(ids))]


def test_ids_run_on():
    source = RowIds(attempt=1, incarnation=0, writer=3)
    assert np.array_equal(np.diff(np.concatenate([source.take(3), source.take(2)])), np.ones(4))


@pytest.mark.parametrize("too_big", [{"attempt": 1024}, {"incarnation": 256}, {"writer": 65_536}, {"writer": -1}])
def test_a_number_that_does_not_fit_is_refused(too_big):
    with pytest.raises(ValueError, match=f"{next(iter(too_big))} .* does not fit"):
        RowIds(**{"attempt": 1, "incarnation": 0, "writer": 0, **too_big})


def test_a_process_that_runs_out_of_ids_says_so():
    source = RowIds(attempt=1, incarnation=0, writer=0)
    source._count = (1 << COUNTER_BITS) - 1
    source.take(1)
    with pytest.raises(OverflowError):
        source.take(1)
