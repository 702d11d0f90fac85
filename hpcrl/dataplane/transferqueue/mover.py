"""Bytes to and from TransferQueue's storage units, by names of our own: its transport, without its controller.

The index of a block's values is made from a number of the process that wrote them and names the unit that holds them, so
nobody has to be asked where a value is, and what is cleared is never another's.
"""

from __future__ import annotations

import asyncio
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
from hpcrl.run.errors import host

T = TypeVar("T")
_OF_ATTEMPT = (1 << (COUNTER_BITS + WRITER_BITS + INCARNATION_BITS)) - 1
_CLEAR_S, _CLEAR_AGAIN_S = 5.0, 0.5
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
    ) -> None:
        self._name, self._unit, self._units, self._ids, self._call_s = name, unit, len(endpoints), ids, call_s
        self._where = ", ".join(f"{e['ip']}:{next(iter(e['ports'].values()))}" for e in endpoints)
        compat.use_key(key)
        self._loop = LoopThread(f"{name}-mover")
        self._manager = compat.connect_units([dict(endpoint) for endpoint in endpoints])
        self._clearing: set[Future[None]] = set()

    def write(self, blocks: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, Ref]]:
        """Keep bytes of blocks, by field; they are durable on the unit's node when this returns.

        Raises:
            DataPlaneError: the unit did not take them within the deadline.
        """
        if self._ids is None:
            raise DataPlaneError(f"{self._name} on {host()}: was made to read only")
        numbers = self._ids.take(len(blocks)).tolist()
        indexes = [value_index(number, self._unit, self._units) for number in numbers]
        alike: dict[tuple[str, ...], list[int]] = {}
        for position, block in enumerate(blocks):
            alike.setdefault(tuple(block), []).append(position)

        async def store() -> None:
            for fields, positions in alike.items():
                if fields:
                    values = {field: _tensor([blocks[p][field] for p in positions]) for field in fields}
                    meta = compat.meta_of([indexes[p] for p in positions], fields)
                    await self._manager.put_data(compat.TensorDict(values, batch_size=[len(positions)]), meta)

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
        alike: dict[tuple[str, ...], list[int]] = {}
        for index, fields in places.items():
            alike.setdefault(tuple(fields), []).append(index)
        found: list[np.ndarray] = [np.empty(0, np.uint8)] * len(refs)

        async def fetch() -> None:
            metas = [compat.meta_of(indexes, fields) for fields, indexes in alike.items()]
            came = await asyncio.gather(*(self._manager.get_data(meta) for meta in metas))
            for (fields, indexes), data in zip(alike.items(), came, strict=True):
                for field in fields:
                    for index, value in zip(indexes, data[field].unbind(), strict=True):
                        found[places[index][field]] = value.numpy()

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
        if self._loop.close():
            self._manager.close()

    async def _clear(self, indexes: Sequence[int]) -> None:
        while indexes := await compat.clear_values(self._manager, indexes):
            await asyncio.sleep(_CLEAR_AGAIN_S)

    def _call(self, what: str, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._loop.run(action, self._call_s)
        except TimeoutError:
            raise DataPlaneError(
                f"{self._name} on {host()}: no answer within {self._call_s:g} s to: {what}; a storage unit may have died: read "
                f"the logs of the queue's processes. Units: {self._where}"
            ) from None
        except _TQ_ERRORS as error:
            raise DataPlaneError(f"{self._name} on {host()}: cannot {what}: {error}. Units: {self._where}") from error


def _tensor(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    tensors = [torch.from_numpy(array) for array in arrays]
    return tensors[0][None] if len(tensors) == 1 else torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
