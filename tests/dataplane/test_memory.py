"""What only the data plane within one process does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcrl.dataplane.history.reader import HistoryReader
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.dataplane.verify.checker import Checker

ROW = {
    "index": np.array([7]),
    "tokens": [np.arange(3, dtype=np.int32)],
    "logprobs": [np.zeros(3, np.float32)],
    "text": ["x"],
    "good": np.ones(1, bool),
}


def test_a_hub_keeps_the_history_that_a_desk_would(make_bench, tmp_path: Path):
    bench = make_bench("memory")
    bench.hub = MemoryHub(tmp_path / "history")
    make, score, train = (bench.plane(group) for group in ("make", "score", "train"))
    for _ in range(2):
        make.put(bench.name, ROW)
    score.fill(score.read(bench.name, ["index"], max_rows=4, wait_s=0), {"reward": np.zeros(2, np.float32)})
    batch = train.read(bench.name, ["index", "reward"], max_rows=4, wait_s=0)
    train.trained(batch, 1)
    train.acknowledge(batch)
    for plane in (make, score, train):
        plane.close()
    bench.hub.close()
    reader, checker = HistoryReader(tmp_path / "history"), Checker({})
    checker.begin(1)
    kinds = []
    for number, event in reader.read():
        assert number == len(kinds)
        checker.see(number, event)
        kinds.append(event.kind)
    done = ["produced", "produced", "leased", "filled", "leased", "trained", "acknowledged", "cleared"]
    assert kinds == ["life"] * 3 + done
    assert checker.finish().clean
