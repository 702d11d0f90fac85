from __future__ import annotations

from hpcrl.supervise.restarts import BURST, BURST_S, Restarts


def test_no_more_than_the_limit():
    restarts = Restarts(2)
    assert [restarts.take(t) for t in (0, 100)] == [None, None]
    assert "2 times in this attempt" in (restarts.take(200) or "")


def test_none_at_all():
    assert "is not started again" in (Restarts(0).take(0) or "")


def test_no_more_than_a_few_at_once_and_more_later():
    restarts = Restarts(100)
    assert [restarts.take(t) for t in range(BURST)] == [None] * BURST
    assert f"{BURST} times within" in (restarts.take(BURST) or "")
    assert restarts.take(BURST_S + 0.5) is None, "the first is too long ago to count"


def test_one_now_and_then_is_always_allowed_up_to_the_limit():
    restarts = Restarts(100)
    assert [restarts.take(BURST_S * n) for n in range(100)] == [None] * 100
    assert restarts.take(BURST_S * 101) is not None
