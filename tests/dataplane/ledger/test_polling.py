"""What an operation costs must not depend on how much lives."""

from __future__ import annotations

import statistics
import time

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.ready import ReadyQueue


def poll_s(drive, blocks: int) -> float:
    """Median time of a poll that finds nothing while so many blocks wait for their reward."""
    drive.lease("train.0", "x", "reward")
    while drive.figures()["blocks"] < blocks:
        drive.put(rows=4)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        drive.lease("train.0", "x", "reward")
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def test_a_poll_of_an_empty_queue_costs_the_same_with_many_rows(make_driver):
    few = make_driver()
    ratios = []
    for _ in range(3):
        many = make_driver()
        ratios.append(poll_s(many, 10_000) / poll_s(few, 100))
        if min(ratios) < 2:
            return
    raise AssertionError(f"polls of 10000 blocks cost {ratios} of polls of 100")


class Counting(ReadyQueue):
    """A queue that counts how often it was asked about a block."""

    looks = 0

    def accepts(self, have):
        Counting.looks += 1
        return super().accepts(have)


def test_a_poll_looks_at_no_block(drive, monkeypatch):
    monkeypatch.setattr("hpcrl.dataplane.ledger.streams.ReadyQueue", Counting)
    for _ in range(50):
        drive.put(rows=4)
    drive.lease("train.0", "x", "reward")
    assert Counting.looks == 50
    for _ in range(50):
        drive.lease("train.0", "x", "reward")
        drive.draw("train.0", 0, 0, columns=["x", "reward"])
    assert Counting.looks == 50


def test_a_queue_that_nobody_asks_any_more_does_not_grow():
    queue = ReadyQueue(frozenset("x"))
    for order in range(10_000):
        queue.add(order, 1)
        queue.discard(order)
    queue.add(10_000, 1)
    assert len(queue._heap) < 200
    assert queue.oldest() == 10_000
    assert queue.rows == 1


def test_who_waits_is_tried_again_only_when_there_may_be_something(drive):
    op = ops.Lease(who="train.0", life=1, seq=99, oldest=1, stream="s", columns=["x", "reward"], max_rows=8, seconds=5.0)
    drive.lease("train.0", "x", "reward")
    assert not drive.ledger.may_give(op)
    drive.put(rows=4)
    assert not drive.ledger.may_give(op)
    drive.fill("score.0", 0)
    assert drive.ledger.may_give(op)
    drive.lease("train.0", "x", "reward")
    assert not drive.ledger.may_give(op)
    drive.say("make.0", ops.Close, stream="s")
    assert drive.ledger.may_give(op)
