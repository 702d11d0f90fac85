"""Leases, draws and credits as a role meets them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from hpcrl.dataplane.interface import Batch, DataPlane, DataPlaneError, EndOfStream
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag

COLUMNS = ("index", "tokens")


def rows(*numbers: int) -> dict:
    return {
        "index": np.array(numbers, np.int64),
        "tokens": [np.full(n + 1, n, np.int32) for n in numbers],
        "logprobs": [np.zeros(n + 1, np.float32) for n in numbers],
        "text": ["" for _ in numbers],
        "good": np.ones(len(numbers), bool),
    }


def take(plane: DataPlane, name: str, wait_s: float = 10.0) -> Batch:
    batch = plane.read(name, COLUMNS, max_rows=4, wait_s=wait_s)
    assert batch is not None
    return batch


def numbers(batch: Batch | None) -> list[int]:
    assert batch is not None
    return batch.columns["index"].tolist()


def test_rows_of_a_reader_that_is_gone_go_to_another(bench):
    make, dying, other = bench.plane("make"), bench.plane("train", 0, lease_s=0.7), bench.plane("train", 1)
    make.put(bench.name, rows(0, 1))
    # The first read of a process may import for seconds, in which no thread says a word.
    take(bench.plane("watch"), bench.name)
    assert numbers(take(dying, bench.name)) == [0, 1]
    # It only computes, and is left alone.
    assert other.read(bench.name, COLUMNS, max_rows=4, wait_s=2.0) is None
    dying.close()
    assert numbers(take(other, bench.name)) == [0, 1]
    assert other.figures(bench.name)[bench.name]["counters"]["expired"] == 2


def test_a_new_life_gives_back_what_the_old_one_held_and_acknowledges_what_its_checkpoint_has(bench):
    make, train = bench.plane("make"), bench.plane("train")
    for number in range(3):
        make.put(bench.name, rows(number))
    batch = train.read(bench.name, COLUMNS, max_rows=4, wait_s=5)
    assert numbers(batch) == [0, 1, 2]
    train.trained(batch, 1)
    again = bench.plane("train", incarnation=1)
    again.acknowledge(Batch(bench.name, {}, batch.blocks[:2]))
    assert numbers(take(again, bench.name)) == [2]
    with pytest.raises(DataPlaneError, match="replaced by its life"):
        train.acknowledge(batch)
    assert again.depth(bench.name).rows == 1


def test_given_back_and_dropped_rows(bench):
    make, train, other = bench.plane("make"), bench.plane("train", 0), bench.plane("train", 1)
    make.put(bench.name, rows(0))
    train.give_back(take(train, bench.name))
    other.drop(take(other, bench.name), "too old")
    figures = train.figures(bench.name)[bench.name]
    assert (figures["rows"], figures["counters"]["dropped"]) == (0, {"too old": 1})


def test_trained_rows_make_room(bench):
    bench.stream(capacity_rows=4)
    make, train = bench.plane("make"), bench.plane("train")
    make.put(bench.name, rows(0, 1, 2, 3))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(make.put, bench.name, rows(4))
        batch = take(train, bench.name)
        train.trained(batch, 1)
        assert len(waiting.result(15)) == 1
    assert train.depth(bench.name).rows == 5
    train.acknowledge(batch)
    assert train.depth(bench.name).rows == 1


def test_ranks_draw_balanced_shares_of_one_set(bench):
    bench.stream(tokens=("tokens",), prompt="index")
    make, ranks = bench.plane("make"), [bench.plane("train", rank) for rank in (0, 1)]
    for number in (9, 1, 2, 4):
        make.put(bench.name, rows(number))

    def draw(rank: int, number: int = 0) -> Batch | None:
        return ranks[rank].draw(bench.name, COLUMNS, draw=number, rows=4, share=rank, shares=2, wait_s=0.2)

    assert (numbers(draw(0)), numbers(draw(1))) == ([9], [1, 2, 4])
    assert numbers(draw(0)) == [9]
    assert draw(0, 1) is None
    make.put(bench.name, rows(3))
    for maker in (make, bench.plane("make", 1)):
        maker.close_stream(bench.name)
    assert numbers(draw(0, 1)) == [3]
    empty = draw(1, 1)
    assert empty is not None
    assert len(empty) == 0
    assert list(empty.columns) == list(COLUMNS)
    for rest in (partial(ranks[1].trained, version=1), ranks[1].acknowledge, ranks[1].give_back):
        rest(empty)
    with pytest.raises(EndOfStream):
        draw(0, 2)
    assert ranks[0].held(bench.name) == {9, 1, 2, 4, 3}


def test_why_a_row_waits(bench):
    make, train = bench.plane("make"), bench.plane("train")
    ids = make.put(bench.name, rows(0))
    lines = "\n".join(train.why(int(ids[0])))
    assert "owed by 'score'" in lines
    assert "owed by 'judge'" in lines


def test_a_reader_that_waits_hears_the_stop(bench):
    stop = StopFlag()
    train = bench.plane("train", stop=stop)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(train.read, bench.name, COLUMNS, max_rows=4, wait_s=60)
        stop.set()
        with pytest.raises(Stopped):
            waiting.result(15)


def test_bytes_go_with_their_rows(bench):
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    for number in range(5):
        make.put(bench.name, rows(number))
        late = take(score, bench.name)
        batch = take(train, bench.name)
        train.acknowledge(batch)
        score.fill(late, {"reward": np.zeros(1, np.float32)})
    assert bench.bytes_left() == 0


def test_a_hub_serves_one_run(make_bench):
    bench = make_bench("memory")
    bench.plane("make")
    bench.stream(capacity_rows=5)
    with pytest.raises(DataPlaneError, match="one run"):
        bench.plane("train")


def test_waking_up_takes_no_polling(bench):
    make, train = bench.plane("make"), bench.plane("train")
    with ThreadPoolExecutor(1) as pool:
        waits = []
        for number in range(10):
            waiting = pool.submit(lambda: (take(train, bench.name), time.perf_counter())[1])
            time.sleep(0.01)
            start = time.perf_counter()
            make.put(bench.name, rows(number))
            waits.append(waiting.result(15) - start)
    assert min(waits) < 0.1
