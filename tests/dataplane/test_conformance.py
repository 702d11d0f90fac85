"""What every data plane must do, run in memory, on one node, and across nodes."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.interface import Batch, DataPlane, DataPlaneError, EndOfStream, SchemaError
from hpcrl.recipe import Column
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag

MADE = ("index", "tokens", "logprobs", "text", "good")


def rows(*numbers: int) -> dict[str, Any]:
    return {
        "index": np.array(numbers, np.int64),
        "tokens": [np.arange(n % 5, dtype=np.int32) + n for n in numbers],
        "logprobs": [-np.ones(n % 5, np.float32) / (n + 1) for n in numbers],
        "text": [f"row {n} — ☃ \u0000 {'🐍' * (n % 3)}" for n in numbers],
        "good": np.array([n % 2 == 0 for n in numbers], bool),
    }


def check(batch: Batch) -> list[int]:
    """The numbers of a batch's rows, after a look at every value."""
    numbers = [int(n) for n in batch.columns["index"]]
    expected = rows(*numbers)
    for name, data in batch.columns.items():
        if name in expected:
            assert len(data) == len(numbers)
            assert type(data) is type(expected[name])
            for got, want in zip(data, expected[name], strict=True):
                assert np.array_equal(got, want), (name, got, want)
                assert getattr(got, "dtype", None) == getattr(want, "dtype", None)
    return numbers


def take(plane: DataPlane, name: str, columns: tuple[str, ...] = MADE, max_rows: int = 4, wait_s: float = 5.0) -> Batch:
    batch = plane.read(name, columns, max_rows=max_rows, wait_s=wait_s)
    assert batch is not None
    return batch


def drain(plane: DataPlane, name: str, columns: tuple[str, ...] = MADE, max_rows: int = 4) -> list[int]:
    numbers = []
    try:
        while True:
            batch = take(plane, name, columns, max_rows, wait_s=15)
            numbers += check(batch)
            plane.acknowledge(batch)
    except EndOfStream:
        return numbers


def test_columns_of_several_roles_come_together(bench):
    make, score, judge, train = (bench.plane(group) for group in ("make", "score", "judge", "train"))
    ids = make.put(bench.name, rows(0, 1, 2))
    seen = take(score, bench.name)
    assert check(seen) == [0, 1, 2]
    assert seen.row_ids.tolist() == ids.tolist()
    everything = (*MADE, "reward", "note")
    assert train.read(bench.name, everything, max_rows=4, wait_s=0) is None
    score.fill(seen, {"reward": np.array([0.5, math.nan, -0.0], np.float32)})
    assert train.read(bench.name, everything, max_rows=4, wait_s=0.05) is None
    judge.fill(take(judge, bench.name), {"note": ["a", "", "\ud800"]})
    batch = take(train, bench.name, everything)
    assert check(batch) == [0, 1, 2]
    assert batch.row_ids.tolist() == ids.tolist()
    reward = batch.columns["reward"]
    assert reward[0] == 0.5
    assert math.isnan(reward[1])
    assert np.signbit(reward[2])
    assert batch.columns["note"] == ["a", "", "\ud800"]


def test_each_row_goes_to_one_replica_of_each_group(bench):
    make = [bench.plane("make", rank) for rank in (0, 1)]
    readers = {(group, rank): bench.plane(group, rank) for group in ("score", "watch") for rank in (0, 1)}

    def produce(rank: int) -> None:
        for start in range(0, 40, 2):
            make[rank].put(bench.name, rows(100 * rank + start, 100 * rank + start + 1))
        make[rank].close_stream(bench.name)

    with ThreadPoolExecutor(6) as pool:
        writing = [pool.submit(produce, rank) for rank in (0, 1)]
        reading = {who: pool.submit(drain, plane, bench.name) for who, plane in readers.items()}
        for job in writing:
            job.result(60)
        got = {who: job.result(60) for who, job in reading.items()}
    for group in ("score", "watch"):
        assert sorted(got[group, 0] + got[group, 1]) == [*range(40), *range(100, 140)]


def test_reads_give_up_to_n_rows_in_whole_blocks_oldest_first(bench):
    make, score = bench.plane("make"), bench.plane("score")
    for block in ([0, 1, 2], [3, 4], [5], [6, 7, 8, 9]):
        make.put(bench.name, rows(*block))
    first = take(score, bench.name, max_rows=7)
    assert check(first) == [0, 1, 2, 3, 4, 5]
    assert [len(block.row_ids) for block in first.blocks] == [3, 2, 1]
    assert check(take(score, bench.name, max_rows=4)) == [6, 7, 8, 9]


def test_filling_parts_of_a_batch_apart(bench):
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    for block in ([0, 1], [2, 3, 4]):
        make.put(bench.name, rows(*block))
    first, second = take(score, bench.name, max_rows=8).split()
    score.fill(second, {"reward": np.array([2, 3, 4], np.float32)})
    assert take(train, bench.name, ("index", "reward"), max_rows=8).columns["reward"].tolist() == [2, 3, 4]
    score.fill(first, {"reward": np.array([0, 1], np.float32)})
    assert take(train, bench.name, ("index", "reward"), max_rows=8).columns["reward"].tolist() == [0, 1]


def test_several_blocks_filled_at_once(bench):
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    for block in ([0], [1, 2], [3, 4, 5]):
        make.put(bench.name, rows(*block))
    score.fill(take(score, bench.name, max_rows=8), {"reward": np.arange(6, dtype=np.float32)})
    batch = take(train, bench.name, ("index", "reward"), max_rows=8)
    assert batch.columns["reward"].tolist() == check(batch) == [0, 1, 2, 3, 4, 5]


def test_cleared_rows_are_gone_and_a_stale_batch_changes_nothing(bench):
    make, score, train, watch = (bench.plane(group) for group in ("make", "score", "train", "watch"))
    make.put(bench.name, rows(0, 1))
    stale, batch = take(score, bench.name), take(train, bench.name)
    train.acknowledge(batch)
    assert bench.plane("train", 1).depth(bench.name).rows == 0
    make.put(bench.name, rows(2, 3))
    score.fill(stale, {"reward": np.zeros(2, np.float32)})
    train.acknowledge(batch)
    assert train.depth(bench.name).rows_with["reward"] == 0
    assert check(take(watch, bench.name)) == [2, 3]
    assert check(take(train, bench.name)) == [2, 3]


def test_only_the_final_reader_clears(bench):
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    make.put(bench.name, rows(0))
    score.acknowledge(take(score, bench.name))
    assert train.depth(bench.name).rows == 1
    train.acknowledge(take(train, bench.name))
    assert train.depth(bench.name).rows == 0


def test_trained_rows_count_no_longer_as_untrained(bench):
    make, train = bench.plane("make"), bench.plane("train")
    make.put(bench.name, rows(0, 1))
    train.trained(take(train, bench.name), 1)
    make.put(bench.name, rows(2))
    depth = train.depth(bench.name)
    assert (depth.rows, depth.untrained) == (3, 1)


def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(bench):
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    good = rows(0, 1)
    for change, said in [
        ({"extra": np.zeros(2)}, "'extra' is not one"),
        ({"index": np.zeros(2, np.int32)}, "column 'index': expected a 1-D int64 array.*got a int32 array"),
        ({"tokens": [np.zeros(1, np.int32), np.zeros(1, np.int64)]}, "column 'tokens'.*in row 1 a int64 array"),
        ({"index": np.zeros((2, 1), np.int64)}, "shape"),
        ({"text": ["only one"]}, "equal length"),
        ({"text": ["a", b"b"]}, "in row 1 builtins.bytes"),
    ]:
        with pytest.raises(SchemaError, match=said):
            make.put(bench.name, {**good, **change})
    with pytest.raises(SchemaError, match="'good' is missing"):
        make.put(bench.name, {name: data for name, data in good.items() if name != "good"})
    with pytest.raises(SchemaError, match="at least one row"):
        make.put(bench.name, rows())
    with pytest.raises(SchemaError, match="block_rows=4"):
        make.put(bench.name, rows(*range(5)))
    with pytest.raises(SchemaError, match="does not create"):
        score.put(bench.name, good)
    assert make.depth(bench.name).rows == 0
    make.put(bench.name, good)
    batch = take(score, bench.name)
    with pytest.raises(SchemaError, match="2 rows, those of the batch, got 3"):
        score.fill(batch, {"reward": np.zeros(3, np.float32)})
    with pytest.raises(SchemaError, match="column 'reward'"):
        score.fill(batch, {"reward": np.zeros(2, np.float64)})
    with pytest.raises(SchemaError, match="may not fill"):
        train.fill(batch, {"reward": np.zeros(2, np.float32)})
    with pytest.raises(SchemaError, match="did you mean 'tokens'"):
        score.read(bench.name, ["token"], max_rows=4, wait_s=0)
    with pytest.raises(SchemaError, match="does not read"):
        score.read(bench.name, ["reward"], max_rows=4, wait_s=0)
    with pytest.raises(SchemaError, match="block_rows=4"):
        score.read(bench.name, ["index"], max_rows=3, wait_s=0)
    with pytest.raises(SchemaError, match="stream 'nowhere' is unknown"):
        score.read("nowhere", ["index"], max_rows=4, wait_s=0)


def test_samples_that_cannot_be_trained_on_are_refused_and_nothing_is_written(bench):
    def finite(column: Column) -> Column:
        return dataclasses.replace(column, finite=column.dtype == "float32")

    columns = tuple(finite(column) for column in bench.recipe.streams[0].columns)
    bench.stream(columns=columns, aligned=(("tokens", "logprobs"),), max_row_bytes=1000)
    make, score, train = bench.plane("make"), bench.plane("score"), bench.plane("train")
    good = rows(1, 2)
    for change, said in [
        ({"logprobs": [np.zeros(1, np.float32), np.array([0, np.nan], np.float32)]}, "'logprobs'.*got nan in row 1, place 1"),
        ({"logprobs": [np.zeros(1, np.float32), np.zeros(3, np.float32)]}, "equally long.*row 1 lengths {'tokens': 2, 'logpr"),
        (
            {"tokens": [np.zeros(1, np.int32), np.zeros((2, 1), np.int32)]},
            r"'tokens'.*in row 1 a int32 array of shape \(2, 1\)",
        ),
        ({"text": ["fits", "x" * 990]}, "row 1 has .* more than its max_row_bytes=1000"),
    ]:
        with pytest.raises(SchemaError, match=said):
            make.put(bench.name, {**good, **change})
    assert make.depth(bench.name).rows == 0
    # No token at all is nothing wrong.
    make.put(bench.name, rows(0, 5))
    batch = take(score, bench.name)
    assert [len(ids) for ids in batch.columns["tokens"]] == [0, 0]
    with pytest.raises(SchemaError, match=r"'reward'.*got inf in row 1"):
        score.fill(batch, {"reward": np.array([0, np.inf], np.float32)})
    score.fill(batch, {"reward": np.zeros(2, np.float32)})
    assert check(take(train, bench.name, ("index", "reward"))) == [0, 5]


def test_what_an_older_life_says_is_refused_and_nothing_is_changed(bench):
    old = bench.plane("make")
    batch_ids = old.put(bench.name, rows(0))
    new = bench.plane("make", attempt=2)
    with pytest.raises(DataPlaneError, match="replaced by its life"):
        old.put(bench.name, rows(1))
    with pytest.raises(DataPlaneError, match="replaced by its life"):
        bench.plane("make", incarnation=3)
    assert len(new.put(bench.name, rows(2))) == 1
    reader = bench.plane("score")
    batch = take(reader, bench.name, max_rows=8)
    assert check(batch) == [0, 2]
    assert batch.row_ids[0] == batch_ids[0]
    assert reader.depth(bench.name).rows == 2


def test_end_of_stream_waits_for_every_producer(bench):
    make, score = [bench.plane("make", rank) for rank in (0, 1)], [bench.plane("score", rank) for rank in (0, 1)]
    train = bench.plane("train")
    make[0].put(bench.name, rows(0))
    make[0].close_stream(bench.name)
    make[0].close_stream(bench.name)
    with pytest.raises(DataPlaneError, match="was closed"):
        make[0].put(bench.name, rows(9))
    batch = take(score[0], bench.name)
    assert score[0].read(bench.name, MADE, max_rows=4, wait_s=0.2) is None
    score[0].fill(batch, {"reward": np.ones(1, np.float32)})
    make[1].close_stream(bench.name)
    for plane in score:
        with pytest.raises(EndOfStream):
            plane.read(bench.name, MADE, max_rows=4, wait_s=15)
    # The rows are closed, but their rewards are not.
    seen = take(train, bench.name, ("index", "reward"))
    assert train.read(bench.name, ("index", "reward"), max_rows=4, wait_s=0.2) is None
    score[1].close_stream(bench.name)
    score[0].close_stream(bench.name)
    with pytest.raises(EndOfStream):
        train.read(bench.name, ("index", "reward"), max_rows=4, wait_s=15)
    assert check(seen) == [0]


def test_every_row_is_trained_once_while_places_are_used_again_and_again(bench):
    bench.stream(capacity_rows=24)
    everything = (*MADE, "reward", "note")
    make, score, train = ([bench.plane(group, rank) for rank in (0, 1)] for group in ("make", "score", "train"))
    judge = bench.plane("judge")

    def produce(rank: int) -> None:
        number = 1000 * rank
        for k in range(30):
            count = 1 + (k + rank) % 4
            make[rank].put(bench.name, rows(*range(number, number + count)))
            number += count
        make[rank].close_stream(bench.name)

    def fill(plane: DataPlane, max_rows: int, column: str) -> None:
        try:
            while True:
                batch = take(plane, bench.name, max_rows=max_rows, wait_s=30)
                numbers = check(batch)
                values = np.array(numbers, np.float32) if column == "reward" else [f"note {n}" for n in numbers]
                plane.fill(batch, {column: values})
        except EndOfStream:
            plane.close_stream(bench.name)

    def finish(plane: DataPlane) -> list[int]:
        numbers = []
        try:
            while True:
                batch = take(plane, bench.name, everything, max_rows=6, wait_s=30)
                found = check(batch)
                assert batch.columns["reward"].tolist() == found
                assert batch.columns["note"] == [f"note {n}" for n in found]
                plane.acknowledge(batch)
                numbers += found
        except EndOfStream:
            return numbers

    with ThreadPoolExecutor(7) as pool:
        jobs = [pool.submit(produce, rank) for rank in (0, 1)]
        jobs += [pool.submit(fill, plane, 8, "reward") for plane in score]
        jobs.append(pool.submit(fill, judge, 4, "note"))
        ends = [pool.submit(finish, plane) for plane in train]
        for job in jobs:
            job.result(100)
        trained = [number for job in ends for number in job.result(100)]
    made = [number for start, count in ((0, 73), (1000, 75)) for number in range(start, start + count)]
    assert len(trained) == len(set(trained))
    assert sorted(trained) == made
    assert judge.depth(bench.name).rows == 0


def test_end_of_stream_of_an_empty_stream(bench):
    for rank in (0, 1):
        bench.plane("make", rank).close_stream(bench.name)
    assert drain(bench.plane("score"), bench.name) == []


def test_feedback_keeps_the_newest_of_each_writer_and_never_goes_back(bench):
    writers = [bench.plane("train", 0), bench.plane("train", 1), bench.plane("score", 0)]
    reader = bench.plane("watch")
    assert reader.newest(bench.gate) == {}
    done = threading.Event()

    def announce(plane: DataPlane) -> None:
        for number in range(1, 31):
            plane.announce(bench.gate, {"version": number, "path": f"v{number}/é", "nested": [1, {"a": None}]})

    def look() -> int:
        last: dict[str, int] = {}
        looks = 0
        while not done.is_set():
            for writer, item in reader.newest(bench.gate).items():
                assert item.writer == writer
                assert item.value == {"version": item.sequence, "path": f"v{item.sequence}/é", "nested": [1, {"a": None}]}
                assert item.sequence >= last.get(writer, 0)
                last[writer] = item.sequence
            looks += 1
        return looks

    with ThreadPoolExecutor(4) as pool:
        looking = pool.submit(look)
        for job in [pool.submit(announce, plane) for plane in writers]:
            job.result(60)
        done.set()
        assert looking.result(60) > 1
    newest = reader.newest(bench.gate)
    assert {name: item.sequence for name, item in newest.items()} == {"train.0": 30, "train.1": 30, "score.0": 30}


def test_a_restarted_writer_goes_on_with_its_sequence(bench):
    bench.plane("train").announce(bench.gate, {"version": 1})
    again = bench.plane("train", incarnation=1)
    again.announce(bench.gate, {"version": 2})
    assert again.newest(bench.gate)["train.0"].sequence == 2


def test_feedback_that_does_not_fit_is_refused(bench):
    train = bench.plane("train")
    with pytest.raises(SchemaError, match="JSON-like"):
        train.announce(bench.gate, {"version": object()})
    with pytest.raises(SchemaError, match="does not announce"):
        bench.plane("watch").announce(bench.gate, {})
    with pytest.raises(SchemaError, match="did you mean"):
        train.newest(bench.gate + "s")


def test_put_waits_for_room_and_goes_on(bench):
    bench.stream(capacity_rows=8)
    make, other, train = bench.plane("make", 0), bench.plane("make", 1), bench.plane("train")
    make.put(bench.name, rows(0, 1, 2, 3))
    other.put(bench.name, rows(10, 11, 12, 13))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(make.put, bench.name, rows(4, 5))
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert train.depth(bench.name).rows == 8
        train.acknowledge(take(train, bench.name))
        assert len(waiting.result(15)) == 2
    assert train.depth(bench.name).rows == 6


def test_put_gives_up_when_no_room_comes_and_when_asked_to_stop(bench):
    bench.stream(capacity_rows=4)
    bench.limits(wait_s=0.4)
    make, stop = bench.plane("make", 0), StopFlag()
    make.put(bench.name, rows(0, 1, 2, 3))
    with pytest.raises(DataPlaneError, match=r"no room for 0.4 s.*'train'"):
        make.put(bench.name, rows(4))
    bench.limits(wait_s=60)
    stopping = bench.plane("make", 1, stop=stop)
    stopping.put(bench.name, rows(5, 6))
    stop.set()
    with pytest.raises(Stopped):
        stopping.put(bench.name, rows(7))


def test_depth_counts_rows_blocks_and_columns(bench):
    make, score = bench.plane("make"), bench.plane("score")
    assert make.depth(bench.name).rows == 0
    for block in ([0, 1, 2], [3, 4]):
        make.put(bench.name, rows(*block))
    score.fill(take(score, bench.name), {"reward": np.zeros(3, np.float32)})
    depth = score.depth(bench.name)
    assert (depth.rows, depth.blocks) == (5, 2)
    assert depth.rows_with["tokens"] == 5
    assert depth.rows_with["reward"] == 3
    assert depth.rows_with["note"] == 0


def test_one_plane_serves_two_threads(bench):
    make, score = bench.plane("make", 0), bench.plane("score")

    def produce(start: int) -> list[int]:
        return [int(row) for k in range(15) for row in make.put(bench.name, rows(start + 2 * k, start + 2 * k + 1))]

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(produce, start) for start in (0, 100)]
        reading = [pool.submit(drain, score, bench.name) for _ in range(2)]
        ids = [job.result(60) for job in writing]
        make.close_stream(bench.name)
        bench.plane("make", 1).close_stream(bench.name)
        numbers = [number for job in reading for number in job.result(60)]
    assert len({*ids[0], *ids[1]}) == 60
    assert sorted(numbers) == [*range(30), *range(100, 130)]


def test_rows_are_copies(bench):
    make, score, watch = bench.plane("make"), bench.plane("score"), bench.plane("watch")
    data = rows(2, 3)
    make.put(bench.name, data)
    data["index"][:] = 7
    data["tokens"][0][:] = 7
    batch = take(score, bench.name)
    assert check(batch) == [2, 3]
    batch.columns["index"][:] = 8
    batch.columns["tokens"][0][:] = 8
    assert check(take(watch, bench.name)) == [2, 3]


def test_a_waiting_read_wakes_up(bench):
    make, score = bench.plane("make"), bench.plane("score")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(take, score, bench.name, MADE, 4, 15)
        make.put(bench.name, rows(1))
        assert check(waiting.result(15)) == [1]


def test_row_ids_are_unique_over_processes_attempts_and_restarts(bench):
    lives: list[dict[str, int]] = [{}, {"incarnation": 1}, {"attempt": 2}]
    ids = [row for rank in (0, 1) for life in lives for row in bench.plane("make", rank, **life).put(bench.name, rows(0, 1))]
    assert len(set(map(int, ids))) == 12


def test_a_closed_plane_says_so(bench):
    make = bench.plane("make")
    make.close()
    make.close()
    with pytest.raises(DataPlaneError, match="closed"):
        make.put(bench.name, rows(0))


def test_the_newest_is_cheap(bench):
    train = bench.plane("train")
    train.announce(bench.gate, {"version": 1})
    start = time.perf_counter()
    for _ in range(20):
        train.newest(bench.gate)
    assert (time.perf_counter() - start) / 20 < 0.05
