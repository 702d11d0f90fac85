import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.algorithms.pacing import lateness, may_start, version_needed

batches = st.integers(0, 10_000)
lags = st.integers(0, 16)
windows = st.none() | st.integers(1, 16)


@given(batches, windows, lags)
def test_the_needed_version_is_the_smallest_that_may_start(batch, window, lag):
    needed = version_needed(batch, window=window, version_lag=lag)
    assert needed >= 0
    assert may_start(batch, needed, window=window, version_lag=lag)
    assert needed == 0 or not may_start(batch, needed - 1, window=window, version_lag=lag)


@given(batches, windows, lags, st.integers(0, 10_000))
def test_never_past_the_version_lag(batch, window, lag, live):
    if may_start(batch, live, window=window, version_lag=lag):
        assert batch - live <= lag


@given(batches, lags)
def test_window_one_is_lock_step(batch, lag):
    assert version_needed(batch, window=1, version_lag=lag) == batch


def test_window_two_generates_one_batch_ahead():
    assert [version_needed(b, window=2, version_lag=4) for b in range(4)] == [0, 0, 1, 2]


def test_no_window_shares_the_lag_between_early_and_late():
    assert [version_needed(b, window=None, version_lag=3) for b in range(6)] == [0, 0, 0, 1, 2, 3]
    assert lateness(window=None, version_lag=3) == 1


@given(batches, windows, lags)
def test_the_oldest_token_keeps_the_lag_even_when_its_prompt_comes_last(batch, window, lag):
    oldest = version_needed(batch, window=window, version_lag=lag)
    assert batch + lateness(window=window, version_lag=lag) - oldest <= lag


def test_a_window_trains_each_batch_in_its_turn():
    assert lateness(window=5, version_lag=9) == 0


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (0, 0, 1), (0, 1, -1)])
def test_refuses_what_makes_no_sense(arguments):
    batch, window, lag = arguments
    with pytest.raises(ValueError, match="must be at least"):
        version_needed(batch, window=window, version_lag=lag)
