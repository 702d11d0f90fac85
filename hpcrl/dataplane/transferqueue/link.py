"""TransferQueue's own calls, as the plane needs them: by block key, each with a deadline, errors that say what to do.

A stream's rows are the TransferQueue partition ``rows/STREAM``: one row a block, one field a column. Small values that must
be replaced in one step are tags of keys without data, which the controller keeps: ``feedback/STREAM`` and ``closed/STREAM``.
"""

from __future__ import annotations

import atexit
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import zmq
from tensordict import TensorDict

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.transferqueue.loop import LoopThread
from hpcrl.run.errors import host

T = TypeVar("T")
Fetched = list[tuple[str, list[np.ndarray]]]
_TQ_ERRORS = (RuntimeError, ValueError, KeyError, OSError, zmq.ZMQError)


class Link:
    """One process's connection to the controller and the storage units. Thread-safe.

    Args:
        name: the process, ``group.rank``.
        endpoints: ``{"controller": endpoint, "storage": [endpoint, …]}`` as the servers published them.
        key: the run's secret.
        call_s: deadline of each call [s].

    Raises:
        DataPlaneError: a server does not answer.
    """

    def __init__(self, name: str, endpoints: Mapping[str, Any], *, key: str, call_s: float) -> None:
        self._name, self._call_s = name, call_s
        # Blocks are routed by position in this list, so every process must have it in one order.
        units = sorted(endpoints["storage"], key=lambda unit: str(unit["id"]))
        self._where = ", ".join(f"{server['role']} {server['ip']}:{port}" for server, port in _ports(endpoints))
        for server, port in _ports(endpoints):
            self._knock(server, port)
        compat.use_key(key)
        self._client = compat.AsyncTransferQueueClient(name, compat.server_info(endpoints["controller"]), zmq_io_threads=1)
        try:
            infos = {unit["id"]: compat.server_info(unit) for unit in units}
            self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": infos})
        except _TQ_ERRORS as error:
            self._client.close()
            raise DataPlaneError(
                f"{name} on {host()}: the queue's controller did not answer the handshake ({error}); does it belong to this "
                f"run? Servers: {self._where}"
            ) from error
        self._loop = LoopThread(f"{name}-queue")
        self._closed = False
        # Left open until the interpreter ends, TransferQueue's threads and sockets would write errors of their own.
        atexit.register(self.close)

    def call(self, what: str, action: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Run an action in the loop thread.

        Raises:
            DataPlaneError: it failed, or did not end in time. After a time-out the link can still be used.
        """
        if self._closed or self._loop.stuck:
            state = "closed" if self._closed else "broken: an earlier call could not be cancelled; restart the process"
            raise DataPlaneError(f"{self._name} on {host()}: cannot {what}, the connection to the queue is {state}")

        async def run() -> T:
            return await action()

        seconds = self._call_s if seconds is None else seconds
        try:
            return self._loop.run(run(), seconds)
        except TimeoutError:
            raise DataPlaneError(
                f"{self._name} on {host()}: no answer within {seconds:g} s to: {what}. A server of the queue may have died; "
                f"read the logs of the queue's processes. Servers: {self._where}"
            ) from None
        except _TQ_ERRORS as error:
            raise DataPlaneError(f"{self._name} on {host()}: cannot {what}: {error}. Servers: {self._where}") from error

    async def blocks(self, partition: str, keys: Sequence[str], *, create: bool = False) -> compat.BatchMeta:
        """Where the blocks are, in the order of keys, less those that are gone."""
        return await self._client.async_kv_retrieve_meta(list(keys), partition, create)

    async def write(self, meta: compat.BatchMeta, columns: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Store packed columns (one array a block) and make them visible."""
        data = {name: _tensor(arrays) for name, arrays in columns.items()}
        await self._client.storage_manager.put_data(TensorDict(data, batch_size=[meta.size]), meta)

    async def fetch(self, partition: str, columns: Sequence[str], task: str, config: dict[str, Any]) -> Fetched | None:
        """Blocks given to a task: for each its key and packed columns. None when none is ready."""
        meta = await self._client.async_get_meta(list(columns), 1, partition, "fetch", task, config)
        if meta.size == 0:
            return None
        data = await self._client.storage_manager.get_data(meta)
        fields = [[item.numpy() for item in data[name].unbind()] for name in columns]
        return [(tag["key"], list(row)) for tag, row in zip(meta.custom_meta, zip(*fields, strict=True), strict=True)]

    async def clear(self, meta: compat.BatchMeta) -> None:
        """Remove blocks for good."""
        await self._client.async_clear_samples(meta)

    async def keys(self, partition: str) -> dict[str, dict[str, Any]]:
        """Every key of a partition and its tag, in one step."""
        found = await self._client.async_kv_list(partition)
        return dict(found.get(partition, {}))

    async def tag(self, partition: str, key: str, tag: dict[str, Any]) -> None:
        """Make a key if it is new, and replace its tag in one step."""
        meta = await self.blocks(partition, [key], create=True)
        meta.clear_custom_meta()
        meta.update_custom_meta([tag])
        await self._client.async_set_custom_meta(meta)

    async def produced(self, partition: str, column: str) -> list[str]:
        """Keys of the blocks that have a column."""
        indexes, status = await self._client.async_get_production_status([column], partition)
        if indexes is None or status is None:
            return []
        have = [int(index) for index, done in zip(indexes, status[:, 0], strict=True) if done]
        keys = await self._client.async_kv_retrieve_keys(have, partition) if have else []
        return [key for key in keys if key is not None]

    def close(self) -> None:
        """Let go of threads and sockets. Safe to call twice."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            if self._loop.close():
                self._client.close()

    def _knock(self, server: Mapping[str, Any], port: int) -> None:
        try:
            socket.create_connection((server["ip"], port), timeout=self._call_s).close()
        except OSError as error:
            raise DataPlaneError(
                f"{self._name} on {host()}: nothing of the queue listens at {server['ip']}:{port} ({server['role']}): {error}; "
                f"read the logs of the queue's processes"
            ) from error


def _ports(endpoints: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], int]]:
    return [(server, port) for server in (endpoints["controller"], *endpoints["storage"]) for port in server["ports"].values()]


def _tensor(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    tensors = [torch.from_numpy(array) for array in arrays]
    return tensors[0][None] if len(tensors) == 1 else torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
