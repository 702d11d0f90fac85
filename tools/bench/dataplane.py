"""The data plane against TransferQueue as it comes, plain pyzmq and a copy through shared memory: same run, same bytes.

    python tools/bench/dataplane.py [--repeats 15]

All on this machine; the queue's processes are those of a run. Each figure is a median, one line each with its ratio to
TransferQueue, and the targets at the end. A cycle is put, read and acknowledge of one batch, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from plain_queues import PlainTransferQueue, PlainZmq, SharedCopy, median_s

from hpcrl.dataplane.connect import QueueAddress, connect
from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.packing import prepare
from hpcrl.recipe import Column, Reads, Recipe, RoleGroup, Schedule, Stream, Writes
from hpcrl.testing.queue_processes import Contract, QueueProcesses, every_edge

KEY = "bench" * 8
SHAPES = {"6 KiB x 256": (6 << 10, 256), "256 KiB x 64": (256 << 10, 64), "16 MiB x 4": (16 << 20, 4)}
COLUMNS = (
    Column(name="prompt", dtype="int32", ragged=True),
    Column(name="tokens", dtype="int32", ragged=True),
    Column(name="logprobs", dtype="float32", ragged=True),
    Column(name="score", dtype="float32"),
    Column(name="task", dtype="str"),
)
NAMES = tuple(column.name for column in COLUMNS)
LATE = Column(name="late", dtype="float32")
STAMP = Column(name="stamp", dtype="int64")
PROCESSES = {"make": 1, "judge": 1, "train": 5}


def recipe() -> Recipe:
    streams = {"rows": COLUMNS, "stamps": (STAMP, LATE)}
    created = {name: tuple(column.name for column in columns if column != LATE) for name, columns in streams.items()}

    def of(columns: dict[str, tuple[str, ...]], claim: Callable[..., Any], **more: bool) -> tuple[Any, ...]:
        return tuple(claim(stream=name, columns=names, **more) for name, names in columns.items())

    everything = {name: tuple(column.name for column in columns) for name, columns in streams.items()}
    return Recipe(
        name="bench",
        groups={
            "make": RoleGroup(role=Contract(write=of(created, Writes, creates=True))),
            "judge": RoleGroup(role=Contract(write=(Writes(stream="stamps", columns=("late",)),))),
            "train": RoleGroup(role=Contract(read=of(everything, Reads, final=True))),
        },
        streams=tuple(Stream(name=name, columns=columns, capacity_rows=1 << 20) for name, columns in streams.items()),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )


def make(row_bytes: int, rows: int) -> dict[str, Any]:
    """Rows of about so many bytes, of lengths that differ."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(row_bytes // 8 * 9 // 10, row_bytes // 8 * 11 // 10, rows) - 16
    return {
        "prompt": [np.arange(16, dtype=np.int32) for _ in lengths],
        "tokens": [np.arange(n, dtype=np.int32) for n in lengths],
        "logprobs": [np.ones(n, np.float32) for n in lengths],
        "score": draw.random(rows, np.float32),
        "task": [f"chain_sum {n}" for n in range(rows)],
    }


def packed(data: dict[str, Any]) -> list[np.ndarray]:
    ids = np.arange(len(data["score"]), dtype=np.int64)
    return [prepare("rows", column, ids, data[column.name]).packed() for column in COLUMNS]


class Keyless(QueueProcesses):
    """The same without CURVE, to see what it costs."""

    def _spawn(self, name: str, context: Any, target: Any, arguments: tuple[Any, ...]) -> Connection:
        return super()._spawn(name, context, without_keys, (target, *arguments))


def without_keys(target: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a process whose sockets are open."""
    from hpcrl.dataplane.desk import client, server
    from hpcrl.dataplane.transferqueue import compat

    for module in (client, server, compat):
        for name in ("guard_server", "guard_client"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: None)
    return target(*arguments)


def plane(address: QueueAddress, group: str, rank: int = 0, incarnation: int = 0) -> DataPlane:
    return connect(address, recipe(), group=group, rank=rank, processes=PROCESSES, key=KEY, incarnation=incarnation)


def cycle(maker: DataPlane, reader: DataPlane, data: dict[str, Any]) -> None:
    maker.put("rows", data)
    batch = reader.read("rows", NAMES, max_rows=256, wait_s=30)
    assert batch is not None
    assert len(batch) == len(data["score"])
    # Large rows are mapped, and pages that nobody looks at would cost nothing.
    for row in (*batch.columns["tokens"], *batch.columns["logprobs"]):
        if len(row) > 1024:
            row[::1024].sum()
    reader.acknowledge(batch)


def cycles(address: QueueAddress, repeats: int, incarnation: int, shapes: list[str]) -> dict[str, float]:
    """Median of a cycle of each shape [s]."""
    maker, reader = plane(address, "make", incarnation=incarnation), plane(address, "train", incarnation=incarnation)
    found = {name: median_s(functools.partial(cycle, maker, reader, make(*SHAPES[name])), repeats) for name in shapes}
    maker.close()
    reader.close()
    return found


def plain_figures(repeats: int) -> dict[str, dict[str, float]]:
    """Of each baseline, cycle times by shape [s]."""
    queue, zmq, keyed = PlainTransferQueue(), PlainZmq(), PlainZmq(KEY)
    found: dict[str, dict[str, float]] = {"TransferQueue": {}, "pyzmq": {}, "pyzmq, keys": {}, "shared copy": {}}
    for name, shape in SHAPES.items():
        data, rows = make(*shape), shape[1]

        def whole(data: dict[str, Any] = data, rows: int = rows) -> None:
            queue.put(data, "rows")
            queue.read_and_clear(NAMES, rows, "rows")

        parts = packed(data)
        shared = SharedCopy(sum(map(len, parts)))
        found["TransferQueue"][name] = median_s(whole, repeats)
        found["pyzmq"][name] = median_s(functools.partial(zmq.cycle, parts), repeats)
        found["pyzmq, keys"][name] = median_s(functools.partial(keyed.cycle, parts), repeats)
        found["shared copy"][name] = median_s(functools.partial(shared.cycle, parts), repeats)
    zmq.close()
    keyed.close()
    queue.close()
    return found


def put_stamps(address: QueueAddress, count: int, pause_s: float) -> None:
    maker = plane(address, "make", incarnation=10)
    for _ in range(count):
        time.sleep(pause_s)
        maker.put("stamps", {"stamp": np.array([time.perf_counter_ns()])})
    maker.close()


def latencies(address: QueueAddress, count: int) -> np.ndarray:
    """From the put of a row to its read by another process that waits for it [s]."""
    reader, found = plane(address, "train", incarnation=10), list[float]()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        job = pool.submit(put_stamps, address, count, 0.02)
        while len(found) < count:
            batch = reader.read("stamps", ("stamp",), max_rows=256, wait_s=60)
            assert batch is not None
            found += [(time.perf_counter_ns() - stamp) / 1e9 for stamp in np.asarray(batch.columns["stamp"]).tolist()]
            reader.acknowledge(batch)
        job.result()
    reader.close()
    return np.array(found[5:])


def polls(address: QueueAddress, repeats: int) -> dict[str, float]:
    """Of an empty poll, by live rows, and of a put at 10k live rows [s]."""
    maker, reader = plane(address, "make", incarnation=20), plane(address, "train", 4)
    found, live = dict[str, float](), 0
    row = {"stamp": np.zeros(10, np.int64)}
    for target in (1_000, 10_000, 100_000):
        while live < target:
            maker.put("stamps", row)
            live += 10
        if target == 10_000:
            found |= beside_idle(address, lambda: maker.put("stamps", row), repeats)
        else:
            read = functools.partial(reader.read, "stamps", ("stamp", "late"), max_rows=256, wait_s=0)
            found[str(target)] = median_s(read, 10 * repeats)
    maker.close()
    reader.close()
    return found


def beside_idle(address: QueueAddress, put: Callable[[], object], repeats: int) -> dict[str, float]:
    """Of a put, alone and beside four idle consumers, in turns [s]."""
    spawn = multiprocessing.get_context("spawn")
    up, busy, end = spawn.Barrier(5), spawn.Event(), spawn.Event()
    idle = [spawn.Process(target=wait_in_vain, args=(address, rank, up, busy, end)) for rank in range(4)]
    for one in idle:
        one.start()
    up.wait(120)
    times: dict[str, list[float]] = {"put alone": [], "put, 4 idle": []}
    for turn in range(2 * repeats):
        (busy.set if turn % 2 else busy.clear)()
        # Longer than a read waits.
        time.sleep(0.8)
        times["put, 4 idle" if turn % 2 else "put alone"].append(median_s(put, 20))
    busy.set()
    end.set()
    for one in idle:
        one.join()
    return {name: median(found) for name, found in times.items()}


def wait_in_vain(address: QueueAddress, rank: int, up: Any, busy: Any, end: Any) -> None:
    reader = plane(address, "train", rank, incarnation=30)
    up.wait(120)
    while not end.is_set():
        busy.wait(10)
        assert reader.read("stamps", ("stamp", "late"), max_rows=256, wait_s=0.5) is None
    reader.close()


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Its result, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def across_sockets(repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Every byte through storage units, the same by the node's memory, and ``desk``: a question; with keys and without [s].

    In turns.
    """
    rounds, shapes = 5, list(SHAPES)
    found: dict[type[QueueProcesses], list[dict[str, float]]] = {QueueProcesses: [], Keyless: []}
    with contextlib.ExitStack() as stack:
        queues = {kind: stack.enter_context(kind(Path(stack.enter_context(history())), key=KEY)) for kind in found}
        for queue in queues.values():
            queue.start_units(2)
            queue.start_desk(recipe(), PROCESSES)
        for turn in range(rounds):
            for kind, queue in queues.items():
                extra = (without_keys,) if kind is Keyless else ()
                across = queue.address(across=every_edge(recipe()), inline_bytes=0)
                times = apart(*extra, cycles, across, max(3, repeats // rounds), 2 * turn, shapes)
                node = apart(*extra, cycles, queue.address(), max(3, repeats // rounds), 2 * turn + 1, shapes)
                times |= {f"{name}, same node": seconds for name, seconds in node.items()}
                times["desk"] = apart(*extra, questions, queue.address(), 10 * repeats, turn)
                found[kind].append(times)
    with_keys, without = ({name: median(one[name] for one in times) for name in times[0]} for times in found.values())
    return with_keys, without


def history() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def questions(address: QueueAddress, repeats: int, incarnation: int) -> float:
    one = plane(address, "judge", incarnation=incarnation)
    found = median_s(lambda: one.depth("rows"), repeats)
    one.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    targets: list[tuple[str, bool]] = []
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    plain = apart(plain_figures, repeats)
    with history() as folder, QueueProcesses(Path(folder), key=KEY) as queue:
        queue.start_desk(recipe(), PROCESSES)
        address = queue.address()
        node = apart(cycles, address, repeats, 0, list(SHAPES))
        waits = apart(latencies, address, 200)
        polled = apart(polls, address, repeats)
    across, keyless = across_sockets(repeats)
    speed = {}
    for name, (row_bytes, rows) in SHAPES.items():
        kinds = {
            "TransferQueue": plain["TransferQueue"][name],
            "hpcrl, same node": node[name],
            "hpcrl, across sockets": across[name],
            "hpcrl, across, no keys": keyless[name],
            "pyzmq packed": plain["pyzmq"][name],
            "pyzmq packed, keys": plain["pyzmq, keys"][name],
            "shared copy": plain["shared copy"][name],
        }
        for kind, seconds in kinds.items():
            ratio = kinds["TransferQueue"] / seconds
            speed[kind, name] = ratio
            mib = rows * row_bytes / 2**20 / seconds
            print(f"{name:13} {kind:24} {rows / seconds:10.0f} rows/s {mib:8.0f} MiB/s  ratio {ratio:6.2f}")
    per_second = 256 / node["6 KiB x 256"]
    ratio = speed["hpcrl, same node", "6 KiB x 256"]
    targets.append((f"6 KiB at 256: {per_second:.0f} rows/s, {ratio:.1f}x (60k or 10x)", per_second >= 60e3 or ratio >= 10))
    for name, least in (("256 KiB x 64", 2), ("16 MiB x 4", 5)):
        ratio = speed["hpcrl, same node", name]
        targets.append((f"{name} same node: {ratio:.1f}x ({least}x)", ratio >= least))
    for name in (*SHAPES, *(f"{name}, same node" for name in SHAPES), "desk"):
        kept = keyless[name] / across[name]
        # What CURVE leaves of a socket with nothing else around it.
        bare = f", pyzmq alone {100 * plain['pyzmq'][name] / plain['pyzmq, keys'][name]:.0f} %" if name in SHAPES else ""
        targets.append((f"keys on, {name}: {100 * kept:.0f} % of without (80 %{bare})", kept >= 0.8))
    print(f"a question to the desk: {across['desk'] * 1e3:.3f} ms, {keyless['desk'] * 1e3:.3f} ms without keys")
    p50, p99 = np.percentile(waits, [50, 99]) * 1e3
    targets.append((f"put to read, idle: p50 {p50:.2f} ms (2), p99 {p99:.2f} ms (10)", p50 < 2 and p99 < 10))
    few, many = polled["1000"] * 1e3, polled["100000"] * 1e3
    targets.append((f"poll at 1k and 100k live rows: {few:.3f} and {many:.3f} ms (within 2x)", many <= 2 * few))
    slower = polled["put, 4 idle"] / polled["put alone"] - 1
    said = f"put of 10 rows beside 10k, 4 idle consumers: {polled['put alone'] * 1e3:.3f} ms, {100 * slower:+.0f} % (10 %)"
    targets.append((said, slower < 0.1))
    for text, met in targets:
        print(f"{'met   ' if met else 'missed'}  {text}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
