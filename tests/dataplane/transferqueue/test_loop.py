from __future__ import annotations

import asyncio
import threading
import time

import pytest

from hpcrl.dataplane.transferqueue.loop import LoopThread
from hpcrl.run.stop import StopFlag


@pytest.fixture
def loop():
    made = LoopThread("test")
    yield made
    assert made.close()


async def answer(value: int) -> int:
    return value


def test_a_call_past_its_deadline_is_cancelled_and_the_next_one_works(loop):
    cancelled = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        loop.run(never, 0.05)
    assert time.monotonic() - start < 2
    assert cancelled.is_set()
    assert loop.run(lambda: answer(3), 5) == 3
    assert not loop.stuck


def test_a_process_that_is_asked_to_stop_waits_less(loop, monkeypatch):
    monkeypatch.setattr("hpcrl.dataplane.transferqueue.loop.STOPPED_S", 0.05)
    stop, began, cancelled = StopFlag(), threading.Event(), threading.Event()

    async def never() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    threading.Thread(target=lambda: began.wait(20) and stop.set()).start()
    with pytest.raises(TimeoutError):
        loop.run(never, 600, stop)
    assert cancelled.wait(5)
    assert not loop.stuck


def test_errors_come_through(loop):
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        loop.run(fail, 5)


def test_closing_ends_what_runs():
    loop, aborted = LoopThread("test"), threading.Event()

    def wait() -> None:
        try:
            loop.run(lambda: asyncio.Event().wait(), 30)
        except ConnectionAbortedError:
            aborted.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert loop.run(lambda: answer(1), 5) == 1
    assert loop.close()
    waiting.join(5)
    assert aborted.is_set()
    assert loop.close()


def test_a_closed_loop_says_so_and_what_was_submitted_ends():
    loop = LoopThread("test")
    future = loop.submit(asyncio.Event().wait())
    assert loop.close()
    assert future.cancelled()
    with pytest.raises(ConnectionAbortedError, match="closed"):
        loop.run(lambda: answer(1), 5)
    with pytest.raises(RuntimeError):
        loop.submit(answer(1))
