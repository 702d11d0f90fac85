from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.dataplane.transferqueue.room import Room


@given(st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_rows_never_exceed_the_share_but_for_one_block(allowed, moves):
    room, live = Room(allowed), []
    for is_put, rows in moves:
        if is_put and room.take(rows, lambda: sum(live)):
            live.append(rows)
            room.settle(rows)
            assert sum(live) <= allowed or len(live) == 1
        elif not is_put and live:
            live.pop(0)


def test_the_queue_is_asked_only_when_the_known_room_is_used_up():
    asked = []
    room = Room(10)

    def count() -> int:
        asked.append(1)
        return 0

    for _ in range(5):
        assert room.take(2, count)
    assert len(asked) == 1


def test_rows_under_way_are_counted():
    room = Room(4)
    assert room.take(4, lambda: 0)
    assert room.take(1, lambda: 0) is None
    room.settle(4)
    assert room.take(1, lambda: 0)


def test_a_block_larger_than_the_share_goes_alone():
    room = Room(2)
    assert room.take(5, lambda: 0)
    room.settle(5)
    assert room.take(5, lambda: 5) is None
    assert room.take(5, lambda: 0)


def test_a_look_that_fails_takes_nothing():
    room = Room(4)

    def fail() -> int:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        room.take(1, fail)
    assert room.take(4, lambda: 0)
