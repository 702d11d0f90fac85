"""Rows per second through TransferQueue, packed in blocks against one put per sample, in the same run.

    python tools/bench/dataplane.py [--rows 2048]

Starts a controller and two storage units on loopback, encrypted as in a run. Samples are like those of GRPO: two ragged
int32 columns of about 64 tokens, one ragged float32 column, a float32 scalar, a short string. A cycle puts all the rows,
reads them up to 256 at a time, and clears them. Every figure is the best of three cycles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import multiprocessing
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import DataPlane
from hpcrl.recipe import Column, Reads, Recipe, Role, RoleGroup, Schedule, Stream, Writes
from hpcrl.run.stop import StopFlag

KEY = "bench" * 8
COLUMNS = (
    Column(name="prompt", dtype="int32", ragged=True),
    Column(name="tokens", dtype="int32", ragged=True),
    Column(name="logprobs", dtype="float32", ragged=True),
    Column(name="reward", dtype="float32"),
    Column(name="task", dtype="str"),
)
NAMES = tuple(column.name for column in COLUMNS)
READ_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Both(Role):
    """Writes and reads the stream."""

    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="samples", columns=NAMES, final=True),)

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="samples", columns=NAMES, creates=True),)


def serve(kind: str, ports: list[int], answers: Any) -> None:
    from hpcrl.dataplane.transferqueue import server

    stop = StopFlag()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def publish(endpoint: dict[str, Any]) -> None:
        answers.put((kind, endpoint))

    common: dict[str, Any] = {"address": "127.0.0.1", "ports": ports, "key": KEY, "publish": publish, "stop": stop}
    if kind == "controller":
        server.serve_controller(**common)
    else:
        server.serve_storage(capacity_blocks=1 << 20, **common)


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Any]]:
    """A controller and two storage units; yields where they listen."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
    plan = [("controller", ports[:2]), ("storage", ports[2:3]), ("storage", ports[3:])]
    processes = [spawn.Process(target=serve, args=(kind, some, answers)) for kind, some in plan]
    for process in processes:
        process.start()
    try:
        try:
            found = [answers.get(timeout=120) for _ in processes]
        except queue.Empty:
            raise SystemExit("a server of the queue did not start within 120 s; see its error above") from None
        yield {
            "controller": next(endpoint for kind, endpoint in found if kind == "controller"),
            "storage": [endpoint for kind, endpoint in found if kind == "storage"],
        }
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def make(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    lengths = random.integers(32, 97, (3, rows))
    return {
        "prompt": [random.integers(0, 50_000, n, np.int32) for n in lengths[0]],
        "tokens": [random.integers(0, 50_000, n, np.int32) for n in lengths[1]],
        "logprobs": [random.random(n, np.float32) for n in lengths[1]],
        "reward": random.random(rows, np.float32),
        "task": [f"chain_sum {k}" for k in range(rows)],
    }


def plane_cycle(plane: DataPlane, data: dict[str, Any], block: int) -> None:
    """Put, read and clear through hpcrl's plane."""
    rows = len(data["reward"])
    for start in range(0, rows, block):
        plane.put("samples", {name: column[start : start + block] for name, column in data.items()})
    done = 0
    while done < rows:
        batch = plane.read("samples", NAMES, max_rows=READ_ROWS, wait_s=10)
        if batch is None:
            raise SystemExit(f"only {done} of {rows} rows came back")
        plane.clear(batch)
        done += len(batch)


def plain_cycle(client: Any, loop: asyncio.AbstractEventLoop, data: dict[str, Any]) -> None:
    """Put, read and clear with TransferQueue's own calls: one sample a put, one field a column."""
    import torch
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    rows = len(data["reward"])

    async def cycle() -> None:
        metas = []
        for k in range(rows):
            fields: dict[str, Any] = {
                name: torch.nested.as_nested_tensor([torch.from_numpy(data[name][k])], layout=torch.jagged)
                for name in ("prompt", "tokens", "logprobs")
            }
            fields["reward"] = torch.from_numpy(data["reward"][k : k + 1])[:, None]
            fields["task"] = NonTensorStack(NonTensorData(data["task"][k]))
            metas.append(await client.async_put(TensorDict(fields, batch_size=[1]), partition_id="plain"))
        for start in range(0, rows, READ_ROWS):
            meta = type(metas[0]).concat(metas[start : start + READ_ROWS])
            await client.async_get_data(meta)
            await client.async_clear_samples(meta)

    loop.run_until_complete(cycle())


def rate(cycle: Callable[[], None], data: dict[str, Any]) -> float:
    """Rows per second, best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        cycle()
        times.append(time.perf_counter() - start)
    return len(data["reward"]) / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2048, help="rows of a cycle with blocks; one put per sample does an eighth")
    rows = parser.parse_args().rows
    recipe = Recipe(
        name="bench",
        groups={"both": RoleGroup(role=Both())},
        streams=(Stream(name="samples", columns=COLUMNS),),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )
    with servers() as endpoints:
        from hpcrl.dataplane.transferqueue import compat

        plane = connect(endpoints, recipe, group="both", rank=0, processes={"both": 1}, key=KEY)
        plane_cycle(plane, make(256), 8)
        client = compat.AsyncTransferQueueClient("plain", compat.server_info(endpoints["controller"]), zmq_io_threads=1)
        units = sorted(endpoints["storage"], key=lambda unit: str(unit["id"]))
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": {u["id"]: compat.server_info(u) for u in units}})
        loop = asyncio.new_event_loop()
        try:
            few, many = make(max(1, rows // 8)), make(rows)
            plain = rate(lambda: plain_cycle(client, loop, few), few)
            print(f"TransferQueue's own calls, one put per sample: {plain:9.0f} rows/s  ratio 1.0")
            for block in (1, 8, 32, 256):
                data = few if block == 1 else many
                speed = rate(functools.partial(plane_cycle, plane, data, block), data)
                print(f"hpcrl, blocks of {block:3d} samples:                  {speed:9.0f} rows/s  ratio {speed / plain:.1f}")
        finally:
            plane.close()
            client.close()
            loop.close()


if __name__ == "__main__":
    main()
