"""What can go wrong between a plane and the processes of its queue."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.interface import DataPlaneError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
MADE = ("index", "tokens", "logprobs", "text", "good")


def rows(count: int) -> dict[str, Any]:
    return {
        "index": np.arange(count),
        "tokens": [np.arange(3, dtype=np.int32)] * count,
        "logprobs": [np.zeros(3, np.float32)] * count,
        "text": ["t"] * count,
        "good": np.ones(count, bool),
    }


@pytest.fixture
def bench(real_queue, make_bench):
    made = make_bench(real_queue)
    yield made
    for plane in made.planes:
        plane.close()


@pytest.mark.parametrize("victim", ["controller", "storage0"])
def test_a_killed_server_ends_calls_within_their_deadline(servers, make_bench, victim):
    bench = make_bench(servers.start("controller", "storage0"))
    bench.limits(call_s=2.0)
    make, score = bench.plane("make"), bench.plane("score")
    make.put(bench.name, rows(2))
    servers.kill(victim)
    calls = {
        "put": lambda: make.put(bench.name, rows(2)),
        "read": lambda: score.read(bench.name, MADE, max_rows=4, wait_s=0),
    }
    if victim == "controller":
        calls["newest"] = lambda: score.newest(bench.gate)
        calls["close"] = lambda: make.close_stream(bench.name)
        calls["depth"] = lambda: score.depth(bench.name)
    for what, call in calls.items():
        start = time.monotonic()
        with pytest.raises(DataPlaneError, match=r"(no answer within 2 s|written twice).*read") as caught:
            call()
        assert time.monotonic() - start < 4, what
        assert bench.name in str(caught.value) or bench.gate in str(caught.value)
    start = time.monotonic()
    make.close()
    score.close()
    assert time.monotonic() - start < 8
    bench.limits(call_s=1.0)
    with pytest.raises(DataPlaneError, match="nothing of the queue listens"):
        bench.plane("train")


def test_an_answer_that_was_lost_is_given_again(bench, monkeypatch):
    make, score = bench.plane("make"), bench.plane("score")
    make.put(bench.name, rows(2))
    make.put(bench.name, rows(3))
    fetch = score._link.fetch

    async def lose(*args: Any) -> None:
        await fetch(*args)
        raise TimeoutError

    monkeypatch.setattr(score._link, "fetch", lose)
    with pytest.raises(DataPlaneError, match="no answer"):
        score.read(bench.name, MADE, max_rows=4, wait_s=0)
    monkeypatch.undo()
    assert [len(score.read(bench.name, MADE, max_rows=4, wait_s=5)) for _ in range(2)] == [2, 3]
    assert score.read(bench.name, MADE, max_rows=4, wait_s=0) is None


def test_a_write_the_controller_did_not_note_is_written_again(bench, monkeypatch):
    make, score = bench.plane("make"), bench.plane("score")
    manager = make._link._client.storage_manager
    notify, lost = manager.notify_data_update, []

    async def lose_first(*args: Any) -> None:
        lost.append(1)
        if len(lost) > 1:
            await notify(*args)

    monkeypatch.setattr(manager, "notify_data_update", lose_first)
    make.put(bench.name, rows(2))
    assert len(lost) == 2
    assert len(score.read(bench.name, MADE, max_rows=4, wait_s=5)) == 2


@pytest.mark.parametrize("step", ["put", "fill"])
def test_a_block_cleared_while_its_writer_looks_is_not_written_again(bench, monkeypatch, step):
    """A second write would land in the block that has its place next."""
    make, score = bench.plane("make"), bench.plane("score")
    plane = make if step == "put" else score
    if step == "fill":
        make.put(bench.name, rows(2))
        batch = score.read(bench.name, MADE, max_rows=4, wait_s=5)
    client, write, writes, clearing = plane._link._client, plane._link.write, [], []

    async def write_and_begin_clearing(meta: Any, columns: Any) -> None:
        writes.append(set(columns))
        await write(meta, columns)
        # What a final reader's clear does: the first step before the writer looks, the others some time after.
        await client._mark_clearing_in_controller(meta)

        async def finish() -> None:
            await asyncio.sleep(0.3)
            await client.storage_manager.clear_data(meta)
            await client._clear_meta_in_controller(meta)

        clearing.append(asyncio.ensure_future(finish()))

    monkeypatch.setattr(plane._link, "write", write_and_begin_clearing)
    if step == "put":
        make.put(bench.name, rows(2))
    else:
        score.fill(batch, {"reward": np.zeros(2, np.float32)})
    assert len(writes) == 1


def test_a_write_that_never_becomes_visible_is_an_error(bench, monkeypatch):
    make = bench.plane("make")

    async def lose(*args: Any) -> None:
        pass

    monkeypatch.setattr(make._link._client.storage_manager, "notify_data_update", lose)
    with pytest.raises(DataPlaneError, match="not visible"):
        make.put(bench.name, rows(2))


def test_bytes_overwritten_under_a_reader_are_noticed(bench):
    from hpcrl.dataplane.packing import pack

    make, score = bench.plane("make"), bench.plane("score")
    row_ids = make.put(bench.name, rows(2))
    key = f"{row_ids[0]}:2"
    column = make._member.stream(bench.name).column("index")
    wrong = pack(bench.name, column, row_ids + 40, np.zeros(2, np.int64))

    async def overwrite() -> None:
        await make._link.write(await make._link.blocks(f"rows/{bench.name}", [key]), {"index": [wrong]})

    make._link.call("overwrite", overwrite)
    with pytest.raises(DataPlaneError, match=r"column 'index'.*asked for"):
        score.read(bench.name, MADE, max_rows=4, wait_s=0)


def test_the_thread_count_of_torch_is_left_alone(bench):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        make, score = bench.plane("make"), bench.plane("score")
        make.put(bench.name, rows(2))
        assert score.read(bench.name, MADE, max_rows=4, wait_s=5) is not None
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_peer_with_another_key_is_not_heard(bench):
    peer = (
        "import sys, json\n"
        "from hpcrl.dataplane.transferqueue.link import Link\n"
        "from hpcrl.dataplane.interface import DataPlaneError\n"
        "try:\n"
        "    Link('peer', json.loads(sys.argv[1]), key='wrong', call_s=2.0)\n"
        "except DataPlaneError as error:\n"
        "    print('refused:', error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", peer, json.dumps(bench.queue)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "refused:" in done.stdout, done.stderr
    assert "does it belong to this run" in done.stdout


def test_closing_under_a_waiting_call_ends_it(bench, monkeypatch):
    score = bench.plane("score")
    started = threading.Event()

    async def never(*args: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(score._link, "fetch", never)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(score.read, bench.name, MADE, max_rows=4, wait_s=0)
        assert started.wait(20)
        score.close()
        with pytest.raises(DataPlaneError, match="closed by another thread"):
            waiting.result(20)


def test_a_process_that_fails_with_its_plane_open_ends_at_once_with_its_own_error(bench):
    # The recipe's classes live in this test tree, so the process makes its own link.
    program = (
        "import sys, json, time\n"
        "from hpcrl.dataplane.transferqueue.link import Link\n"
        "link = Link('peer', json.loads(sys.argv[1]), key=sys.argv[2], call_s=20.0)\n"
        "link.call('tag', lambda: link.tag('feedback/test', 'peer', {'sequence': 1}))\n"
        "assert link.call('keys', lambda: link.keys('feedback/test'))['peer'] == {'sequence': 1}\n"
        "print(time.time(), flush=True)\n"
        "raise KeyError('the role failed')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, json.dumps(bench.queue), "0123456789abcdef" * 3]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stderr.strip().endswith("KeyError: 'the role failed'"), done.stderr
    assert time.time() - float(done.stdout) < 5
