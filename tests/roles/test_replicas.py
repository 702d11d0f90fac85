from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.roles.replicas import Engine, Replicas, deal

A, B = Engine("inference.0", "http://a", 3), Engine("inference.1", "http://b", 4)
NEWEST = {"inference.1": {"url": "http://b", "version": 4}, "inference.0": {"url": "http://a", "version": 3}}


def test_only_engines_that_are_new_enough_are_fresh():
    replicas = Replicas()
    assert replicas.fresh(NEWEST, 3) == [A, B]
    assert replicas.fresh(NEWEST, 4) == [B]
    assert replicas.fresh(NEWEST, 5) == []


def test_the_least_busy_is_chosen():
    replicas = Replicas()
    assert replicas.choose([A, B]) == A
    with replicas.request(A):
        assert replicas.choose([A, B]) == B
        with replicas.request(B):
            assert replicas.choose([A, B]) == A
    assert replicas.choose([A, B]) == A


def fail(replicas, engine):
    with pytest.raises(OSError, match="gone"), replicas.request(engine):
        raise OSError("gone")


def test_one_that_failed_rests_unless_no_other_is_there():
    now = [0.0]
    replicas = Replicas(rest_s=10, clock=lambda: now[0])
    fail(replicas, A)
    assert replicas.well([A, B]) == [B]
    assert replicas.choose([A, B]) == B
    assert replicas.choose([A]) == A
    now[0] = 10.1
    assert replicas.choose([A, B]) == A


def test_one_that_announces_itself_anew_is_well():
    replicas = Replicas()
    fail(replicas, A)
    assert replicas.well([Engine(A.name, A.url, A.version + 1)]) == [Engine(A.name, A.url, A.version + 1)]


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(1, 9))
def test_deal_is_even_and_complete(numbers, count):
    engines = [Engine(f"inference.{i}", f"http://{i}", 0) for i in range(count)]
    shares = deal(numbers, engines)
    assert [k for _, share in shares for k in share] == numbers
    sizes = [len(share) for _, share in shares]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert 0 not in sizes
