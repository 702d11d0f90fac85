from __future__ import annotations

import threading
import time
from itertools import islice

import pytest

from hpcrl.run.errors import DeadlineExceeded, Stopped
from hpcrl.run.stop import StopFlag, back_off, wait_for


def test_pauses_grow_to_their_limit():
    assert list(islice(back_off(1, 5, 2), 5)) == [1, 2, 4, 5, 5]


def test_a_wait_returns_the_first_answer_even_a_false_one():
    answers = iter([None, None, 0])
    assert wait_for("it", lambda: next(answers), seconds=10) == 0


def test_a_wait_that_takes_too_long_names_itself():
    with pytest.raises(DeadlineExceeded, match=r"waited 0\.02 s for the tide"):
        wait_for("the tide", lambda: None, seconds=0.02)


def test_a_stop_ends_a_wait_at_once():
    stop = StopFlag()
    threading.Timer(0.05, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Stopped, match="the tide"):
        wait_for("the tide", lambda: None, seconds=30, stop=stop, pauses=iter(lambda: 30.0, None))
    assert time.monotonic() - started < 5
