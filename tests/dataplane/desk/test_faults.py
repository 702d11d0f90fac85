"""A desk that is killed or stopped under full load: nothing is lost, nothing comes twice, and the history says so."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.desk.client import DeskClient
from hpcrl.dataplane.history.reader import HistoryReader
from hpcrl.dataplane.interface import DataPlane, DataPlaneError, EndOfStream
from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.shm.folders import usage
from hpcrl.dataplane.verify.checker import Checker
from hpcrl.run.stop import wait_for
from hpcrl.testing.queue_processes import QueueProcesses

pytestmark = pytest.mark.slow
KEY = "0123456789abcdef" * 3
COLUMNS = ("index", "tokens", "reward")


def rows(start: int, count: int) -> dict[str, Any]:
    return {
        "index": np.arange(start, start + count),
        "tokens": [np.full(600, start + n, np.int32) for n in range(count)],
        "logprobs": [np.zeros(600, np.float32)] * count,
        "text": ["t"] * count,
        "good": np.ones(count, bool),
    }


class Traffic:
    """Two producers, two graders and two trainers at full rate, until told to end.

    Attributes:
        put: numbers of rows whose put was acknowledged.
        trained: numbers in the order of their training.
    """

    def __init__(self, bench: Any) -> None:
        self.bench, self.end = bench, threading.Event()
        self.put: list[int] = []
        self.trained: list[int] = []
        self.pool = ThreadPoolExecutor(6)
        planes = [(group, rank, bench.plane(group, rank)) for group in ("make", "score", "train") for rank in (0, 1)]
        loops: dict[str, Callable[[DataPlane, int], None]] = {"make": self._make, "score": self._score, "train": self._train}
        self.jobs: list[Future[None]] = [self.pool.submit(loops[group], plane, rank) for group, rank, plane in planes]

    def finish(self) -> None:
        """Raises whatever any of them met."""
        self.end.set()
        for job in self.jobs:
            job.result(120)
        self.pool.shutdown()

    def _make(self, plane: DataPlane, rank: int) -> None:
        number = rank << 24
        while not self.end.is_set():
            plane.put(self.bench.name, rows(number, 4))
            self.put += range(number, number + 4)
            number += 4
        plane.close_stream(self.bench.name)

    def _score(self, plane: DataPlane, _: int) -> None:
        try:
            while True:
                batch = plane.read(self.bench.name, ("index", "tokens"), max_rows=8, wait_s=60)
                assert batch is not None
                plane.fill(batch, {"reward": batch.columns["index"].astype(np.float32)})
        except EndOfStream:
            plane.close_stream(self.bench.name)

    def _train(self, plane: DataPlane, _: int) -> None:
        try:
            while True:
                batch = plane.read(self.bench.name, COLUMNS, max_rows=16, wait_s=60)
                assert batch is not None
                numbers = batch.columns["index"].tolist()
                assert [int(tokens[0]) for tokens in batch.columns["tokens"]] == numbers
                plane.trained(batch, 1)
                self.trained += numbers
                plane.acknowledge(batch)
        except EndOfStream:
            return


def proves(folder: Path) -> None:
    reader, checker = HistoryReader(folder), Checker({})
    checker.begin(1)
    for number, event in reader.read():
        checker.see(number, event)
    report = checker.finish()
    assert not reader.missing
    assert report.clean, report


def bench_of(make_bench: Any, queue: QueueProcesses) -> Any:
    bench = make_bench("node", queue)
    bench.stream(capacity_rows=400)
    return bench


def check(traffic: Traffic, bench: Any, queue: QueueProcesses) -> None:
    assert len(traffic.put) > 100
    assert len(traffic.trained) == len(set(traffic.trained)), "rows were trained twice"
    assert set(traffic.put) == set(traffic.trained), "rows were lost"
    assert bench.planes[0].depth(bench.name).rows == 0
    assert bench.bytes_left() == 0
    assert usage(queue.folder).files == 1, "more than the log is left"
    assert queue.stop() == {"queue.0": 0}
    proves(queue.history)


def test_a_desk_killed_again_and_again_loses_nothing(make_bench, queue):
    bench = bench_of(make_bench, queue)
    traffic, draw, away = Traffic(bench), random.Random(3), []
    watch = bench.plane("watch")
    for _ in range(20):
        time.sleep(0.05 + 0.3 * draw.random())
        queue.kill("queue.0")
        began = time.monotonic()
        queue.start_desk(bench.recipe, bench.processes)
        watch.newest(bench.gate)
        away.append(time.monotonic() - began)
    traffic.finish()
    assert sorted(away)[-1] < 10, away
    check(traffic, bench, queue)


def test_a_desk_stopped_for_long_loses_nothing(make_bench, queue, capfd):
    bench = bench_of(make_bench, queue)
    traffic = Traffic(bench)
    wait_for("traffic", lambda: len(traffic.trained) > 50 or None, seconds=60)
    pid = queue.processes["queue.0"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(10)
        before = len(traffic.put)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for("traffic to go on", lambda: len(traffic.put) > before + 50 or None, seconds=60)
    traffic.finish()
    check(traffic, bench, queue)
    assert "turned away" not in capfd.readouterr().err


def test_a_lease_whose_answer_was_lost_is_given_to_who_asks_again(make_bench, queue):
    bench = bench_of(make_bench, queue)
    bench.limits(call_s=1.0)
    make, train = bench.plane("make"), bench.plane("score")
    make.put(bench.name, rows(0, 4))
    pid = queue.processes["queue.0"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DataPlaneError, match="did not answer"):
            train.read(bench.name, ("index",), max_rows=4, wait_s=0)
    finally:
        # It finds the question, and leases the rows to somebody who has gone.
        os.kill(pid, signal.SIGCONT)
    wait_for("the lease", lambda: _leased(make, bench) == 4 or None, seconds=20)
    batch = train.read(bench.name, ("index",), max_rows=4, wait_s=5)
    assert batch.columns["index"].tolist() == [0, 1, 2, 3]
    assert train.read(bench.name, ("index",), max_rows=4, wait_s=0) is None


def _leased(plane: DataPlane, bench: Any) -> int:
    return plane.figures(bench.name)[bench.name]["groups"]["score"]["leased"]


def test_rows_that_cannot_be_read_go_back(make_bench, queue):
    bench = bench_of(make_bench, queue)
    make, score, other = bench.plane("make"), bench.plane("score"), bench.plane("score", 1)
    make.put(bench.name, rows(0, 4))
    hidden = [path.rename(path.with_suffix(".away")) for path in queue.folder.glob("make.0/*/*.seg")]
    with pytest.raises(DataPlaneError, match="No such file"):
        score.read(bench.name, ("index", "tokens"), max_rows=4, wait_s=5)
    for path in hidden:
        path.rename(path.with_suffix(".seg"))
    assert other.read(bench.name, ("index", "tokens"), max_rows=4, wait_s=5).columns["index"].tolist() == [0, 1, 2, 3]


def test_refused_rows_leave_no_bytes(make_bench, queue):
    bench = bench_of(make_bench, queue)
    bench.limits(wait_s=0.3)
    bench.stream(capacity_rows=4)
    make, train = bench.plane("make"), bench.plane("train")
    make.put(bench.name, rows(0, 4))
    for _ in range(3):
        with pytest.raises(DataPlaneError, match="no room"):
            make.put(bench.name, rows(4, 4))
    train.acknowledge(train.read(bench.name, ("index",), max_rows=4, wait_s=5))
    assert bench.bytes_left() == 0


def test_another_runs_key_is_refused(make_bench, queue):
    bench = bench_of(make_bench, queue)
    make = bench.plane("make")
    stranger = DeskClient("make.0", queue.endpoints["queue.0"], key="of another run", call_s=1.0)
    with pytest.raises(DataPlaneError, match="did not answer"):
        stranger.ask(lambda seq, oldest: ops.Beat(who="make.0", life=999, seq=seq, oldest=oldest), what="be heard")
    stranger.close()
    assert len(make.put(bench.name, rows(0, 1))) == 1
    assert make.depth(bench.name).rows == 1


def test_closing_under_a_waiting_read_ends_it(make_bench, queue):
    bench = bench_of(make_bench, queue)
    score = bench.plane("score")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(score.read, bench.name, ("index",), max_rows=4, wait_s=60)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        score.close()
        with pytest.raises(DataPlaneError, match="closed"):
            waiting.result(20)
