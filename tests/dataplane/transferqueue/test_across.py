"""Rows that travel through storage units, as roles see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.shm.folders import usage
from hpcrl.testing.queue_processes import QueueProcesses

pytestmark = pytest.mark.slow  # imports torch and TransferQueue
KEY = "0123456789abcdef" * 3


def rows(*numbers: int) -> dict[str, Any]:
    return {
        "index": np.array(numbers, np.int64),
        "tokens": [np.full(800, n, np.int32) for n in numbers],
        "logprobs": [np.zeros(800, np.float32) for n in numbers],
        "text": ["" for _ in numbers],
        "good": np.ones(len(numbers), bool),
    }


@pytest.fixture
def own_units(tmp_path: Path):
    with QueueProcesses(tmp_path / "units", key=KEY) as held:
        held.start_units(2)
        yield held


@pytest.fixture
def bench(own_units, make_bench, queue):
    return make_bench("across", queue, own_units)


def values(units: QueueProcesses) -> int:
    """Segments that hold values."""
    return sum(1 for path in units.folder.glob("queue.*/*/*.seg"))


def test_nothing_is_left_of_rows_however_they_end(bench, own_units):
    make, score, train, watch = (bench.plane(group) for group in ("make", "score", "train", "watch"))
    for number in range(4):
        make.put(bench.name, rows(number))
    late = score.read(bench.name, ("index",), max_rows=4, wait_s=20)
    batches = train.read(bench.name, ("index",), max_rows=4, wait_s=20).split()
    # The reader has read one of the columns; all go.
    train.acknowledge(batches[0])
    train.drop(batches[1], "too old")
    score.fill(late, {"reward": np.zeros(4, np.float32)})
    train.trained(batches[2], 1)
    train.trained(batches[3], 1)
    again = bench.plane("train", incarnation=1)
    for batch in batches[2:]:
        again.acknowledge(batch)
    assert watch.depth(bench.name).rows == 0
    for plane in (make, score, train, watch, again):
        plane.close()
    make_sure = bench.plane("make", 1)
    ids = make_sure.put(bench.name, rows(9))
    assert len(ids) == 1
    assert own_units.stop() == {"queue.1": 0, "queue.2": 0}
    # Of the last row alone something is left.
    assert values(own_units) == 1
    assert usage(bench.processes_of_queue.folder).by_writer.keys() == {"ledger.wal"}
