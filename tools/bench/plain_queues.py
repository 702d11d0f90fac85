"""What the data plane is held against: TransferQueue as it comes, plain pyzmq, and a copy through shared memory.

TransferQueue runs here with a controller, two storage units and a client of its own, without keys, and with a stand-in for Ray
as its modules name it and nothing here needs it.
"""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import zmq

from hpcrl.run.curve import curve_pair, guard_client, guard_server

Columns = dict[str, Any]
_RAY = ("ray", "ray.util", "ray.util.scheduling_strategies")


def median_s(step: Callable[[], object], repeats: int) -> float:
    """Median time of a step, after one that is not counted [s]."""
    step()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return median(times)


class PlainTransferQueue:
    """Puts, reads and clears with TransferQueue's own calls; use it in a process that imports nothing else of it."""

    def __init__(self) -> None:
        _stand_in_for_ray()
        from transfer_queue.client import AsyncTransferQueueClient
        from transfer_queue.utils.enum_utils import Role
        from transfer_queue.utils.zmq_utils import ZMQServerInfo

        spawn = multiprocessing.get_context("spawn")
        self._servers, infos = [], []
        for kind in ("controller", "unit", "unit"):
            ours, theirs = spawn.Pipe(duplex=False)
            server = spawn.Process(target=_serve, args=(kind, theirs), daemon=True)
            server.start()
            self._servers.append(server)
            role, name, ip, ports = ours.recv()
            infos.append(ZMQServerInfo(role=Role(role), id=name, ip=ip, ports=ports))
        self._client = AsyncTransferQueueClient("bench", infos[0], zmq_io_threads=1)
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": {info.id: info for info in infos[1:]}})
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._client.close()
        for server in self._servers:
            server.kill()
            server.join()

    def put(self, columns: Columns, partition: str) -> None:
        self._loop.run_until_complete(self._client.async_put(_tensors(columns), partition_id=partition))

    def read_and_clear(self, names: Sequence[str], rows: int, partition: str) -> None:
        async def step() -> None:
            meta = await self._client.async_get_meta(list(names), rows, partition, mode="fetch", task_name="train")
            data = await self._client.async_get_data(meta)
            assert len(data) == rows
            await self._client.async_clear_samples(meta)

        self._loop.run_until_complete(step())


def _serve(kind: str, pipe: Connection) -> None:
    _stand_in_for_ray()
    if kind == "controller":
        from transfer_queue.controller import TransferQueueController

        server = TransferQueueController(polling_mode=True)
    else:
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        server = SimpleStorageUnit({"total_storage_size": 1 << 20, "num_data_storage_units": 1})
    info = server.get_zmq_server_info()
    pipe.send((info.role.value, info.id, info.ip, dict(info.ports)))
    while True:
        time.sleep(60)


def _stand_in_for_ray() -> None:
    # What it takes anyway, after a warning at each call.
    os.environ.setdefault("TQ_NUM_THREADS", str(min(8, os.cpu_count() or 1)))
    modules = {name: types.ModuleType(name) for name in _RAY}
    ray, util, strategies = modules.values()
    ray.__path__, util.__path__ = [], []

    def remote(*args: Any, **options: Any) -> Any:
        return args[0] if args and not options else lambda decorated: decorated

    ray.__dict__.update(remote=remote, ObjectRef=object, util=util)
    util.__dict__.update(scheduling_strategies=strategies, get_node_ip_address=lambda: "127.0.0.1")
    strategies.__dict__.update(NodeAffinitySchedulingStrategy=object)
    sys.modules.update(modules)


def _tensors(columns: Columns) -> Any:
    import torch
    from tensordict import NonTensorStack, TensorDict

    fields: dict[str, Any] = {}
    for name, data in columns.items():
        if isinstance(data, np.ndarray):
            fields[name] = torch.from_numpy(data)
        elif isinstance(data[0], str):
            fields[name] = NonTensorStack(*data)
        else:
            fields[name] = torch.nested.as_nested_tensor([torch.from_numpy(row) for row in data], layout=torch.jagged)
    return TensorDict(fields, batch_size=[len(data)])


class PlainZmq:
    """A process that keeps what it is sent until it is asked for, with nothing else to it.

    Args:
        key: for CURVE; empty goes without.
    """

    def __init__(self, key: str = "") -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe(duplex=False)
        self._server = spawn.Process(target=_keep, args=(theirs, key), daemon=True)
        self._server.start()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        if key:
            guard_client(self._socket, curve_pair(key))
        self._socket.connect(ours.recv())

    def cycle(self, parts: Sequence[np.ndarray]) -> int:
        """Bytes that came back."""
        self._socket.send_multipart([b"put", *(part.data for part in parts)], copy=False)
        self._socket.recv()
        self._socket.send(b"get")
        return sum(len(frame) for frame in self._socket.recv_multipart(copy=False))

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._server.kill()
        self._server.join()


def _keep(pipe: Connection, key: str) -> None:
    socket = zmq.Context().socket(zmq.REP)
    if key:
        guard_server(socket, curve_pair(key))
    pipe.send(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    kept: list[Any] = []
    while True:
        _, *frames = socket.recv_multipart(copy=False)
        if frames:
            kept = frames
            socket.send(b"")
        else:
            socket.send_multipart(kept, copy=False)


class SharedCopy:
    """One copy into memory that processes share, and one out of it."""

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(size)
            self._shared = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        self._out = np.zeros(size, np.uint8)

    def cycle(self, parts: Sequence[np.ndarray]) -> None:
        at = 0
        for part in parts:
            self._shared[at : at + len(part)] = part
            at += len(part)
        np.copyto(self._out[:at], self._shared[:at])
