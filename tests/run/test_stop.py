from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


# As a role waits, short sleeps one after the other, and signals at any moment of them.
SIGNALS = """
import random, signal, time
from hpcrl.run.stop import StopFlag
flag, draw, end = StopFlag(), random.Random(0), time.monotonic() + 3
signal.signal(signal.SIGALRM, lambda *_: flag.set())
while time.monotonic() < end:
    flag = StopFlag()
    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 1e-4))
    while not flag.sleep(1e-5):
        pass
"""


def test_a_signal_in_the_middle_of_a_wait_is_heard():
    subprocess.run([sys.executable, "-c", SIGNALS], timeout=60, check=True)


def test_everybody_who_waits_hears_the_stop_however_often_it_is_asked_for():
    for _ in range(20):
        stop = StopFlag()
        with ThreadPoolExecutor(16) as pool:
            waiting = [pool.submit(stop.sleep, 60) for _ in range(8)]
            asking = [pool.submit(stop.set) for _ in range(8)]
            assert all(future.result(10) for future in waiting)
            assert [future.result(10) for future in asking] == [None] * 8
        assert stop.sleep(60)
        assert stop.is_set()


def test_a_wait_without_a_stop_takes_its_time():
    stop = StopFlag()
    began = time.monotonic()
    assert not stop.sleep(0.05)
    assert 0.04 < time.monotonic() - began < 5
    assert not stop.sleep(0)
    assert not stop.sleep(-1)
    threading.Timer(0.05, stop.set).start()
    assert stop.sleep(float("inf"))
