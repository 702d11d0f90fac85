"""Bytes to and from TransferQueue's storage units, by names of our own: its transport, without its controller.

The index of a block's values is made from a number of the process that wrote them and names the unit that holds them, so
nobody has to be asked where a value is, and what is cleared is never another's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
import zmq

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.rowids import COUNTER_BITS, INCARNATION_BITS, WRITER_BITS, RowIds
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.transferqueue.loop import LoopThread
from hpcrl.dataplane.transferqueue.pieces import Request, requests_of
from hpcrl.run.errors import host
from hpcrl.run.stop import STOPPED_S, StopFlag

T = TypeVar("T")
_OF_ATTEMPT = (1 << (COUNTER_BITS + WRITER_BITS + INCARNATION_BITS)) - 1
_CLEAR_S, _CLEAR_AGAIN_S = 5.0, 0.5
_AT_A_TIME = 4
_TQ_ERRORS = (RuntimeError, ValueError, KeyError, OSError, zmq.ZMQError)


def value_index(number: int, unit: int, units: int) -> int:
    """Index of values on a unit: unique within the attempt as the number is, and TransferQueue's routing leads to the unit."""
    return (number & _OF_ATTEMPT) * units + unit


class Mover:
    """One process's connection to the storage units. Thread-safe.

    Args:
        name: the process, ``group.rank``.
        endpoints: of the units, as they published them, in the order of their ranks.
        unit: the unit that this process writes to, the nearest one.
        call_s: deadline of each call [s].
        ids: numbers for its values, no other process's; None = it only reads.
        stop: once it is set, calls wait no longer than :data:`~hpcrl.run.stop.STOPPED_S`.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Mapping[str, Any]],
        *,
        key: str,
        unit: int,
        call_s: float,
        ids: RowIds | None = None,
        stop: StopFlag | None = None,
    ) -> None:
        self._stop = stop or StopFlag()
        self._name, self._unit, self._units, self._ids, self._call_s = name, unit, len(endpoints), ids, call_s
        self._where = ", ".join(f"{e['ip']}:{next(iter(e['ports'].values()))}" for e in endpoints)
        compat.use_key(key)
        self._loop = LoopThread(f"{name}-mover")
        self._manager = compat.connect_units([dict(endpoint) for endpoint in endpoints])
        self._clearing: set[Future[None]] = set()
        self._lock, self._open = threading.Lock(), True

    def write(self, blocks: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, Ref]]:
        """Keep bytes of blocks, by field; they are durable on the unit's node when this returns.

        Raises:
            DataPlaneError: the unit did not take them within the deadline.
        """
        if self._ids is None:
            raise DataPlaneError(f"{self._name} on {host()}: was made to read only")
        numbers = self._ids.take(len(blocks)).tolist()
        indexes = [value_index(number, self._unit, self._units) for number in numbers]
        requests = requests_of([{field: data.nbytes for field, data in block.items()} for block in blocks])

        async def put(request: Request) -> None:
            cut = [[blocks[p][one.field][one.start : one.end] for one in of] for p, of in zip(*request, strict=True)]
            columns = zip(request.names, zip(*cut, strict=True), strict=True)
            values = {name: [torch.from_numpy(array) for array in arrays] for name, arrays in columns}
            await compat.put_values(self._manager, [indexes[p] for p in request.positions], values)

        async def store() -> None:
            await _few(put, requests)

        try:
            self._call("store rows", store)
        except BaseException:
            self.clear(indexes)
            raise
        return [
            {field: Ref(kind="tq", size=data.nbytes, where=field, index=index) for field, data in block.items()}
            for index, block in zip(indexes, blocks, strict=True)
        ]

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """The bytes again, the caller's own.

        Raises:
            DataPlaneError: a unit did not give them within the deadline.
        """
        places: dict[int, dict[str, int]] = {}
        for place, ref in enumerate(refs):
            places.setdefault(ref.index, {})[ref.where] = place
        indexes = list(places)
        requests = requests_of([{refs[place].where: refs[place].size for place in of.values()} for of in places.values()])
        found = [np.empty(ref.size, np.uint8) for ref in refs]

        async def get(request: Request) -> None:
            data = await compat.get_values(self._manager, [indexes[p] for p in request.positions], request.names)
            values = [data[name] for name in request.names]
            for row, (position, pieces) in enumerate(zip(*request, strict=True)):
                for one, value in zip(pieces, values, strict=True):
                    found[places[indexes[position]][one.field]][one.start : one.end] = value[row].numpy()

        async def fetch() -> None:
            await _few(get, requests)

        self._call("fetch rows", fetch)
        return found

    def clear(self, indexes: Sequence[int]) -> None:
        """Let the units forget values, in the background, however long a unit is away; :meth:`close` ends that."""
        if indexes:
            with suppress(RuntimeError):  # closed already: they go with the attempt
                future = self._loop.submit(self._clear(sorted(set(indexes))))
                self._clearing.add(future)
                future.add_done_callback(self._clearing.discard)

    def close(self) -> None:
        """Let go of threads and sockets, after clears that are under way."""
        wait(list(self._clearing), timeout=_CLEAR_S)
        with self._lock:
            closing, self._open = self._open, False
        if self._loop.close() and closing:
            self._manager.close()
            compat.drop_key()

    async def _clear(self, indexes: Sequence[int]) -> None:
        while indexes := await compat.clear_values(self._manager, indexes):
            await asyncio.sleep(_CLEAR_AGAIN_S)

    def _call(self, what: str, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._loop.run(action, self._call_s, self._stop)
        except TimeoutError:
            most = min(self._call_s, STOPPED_S) if self._stop.is_set() else self._call_s
            raise DataPlaneError(
                f"{self._name} on {host()}: no answer within {most:g} s to: {what}; a storage unit may have died: read "
                f"the logs of the queue's processes. Units: {self._where}"
            ) from None
        except _TQ_ERRORS as error:
            raise DataPlaneError(f"{self._name} on {host()}: cannot {what}: {error}. Units: {self._where}") from error


async def _few(step: Callable[[Request], Coroutine[Any, Any, None]], requests: Sequence[Request]) -> None:
    """All of them, a few at a time."""
    room = asyncio.Semaphore(_AT_A_TIME)

    async def one(request: Request) -> None:
        async with room:
            await step(request)

    await asyncio.gather(*map(one, requests))
