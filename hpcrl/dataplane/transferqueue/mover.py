"""Bytes to and from TransferQueue's storage units, by names of our own: its transport, without its controller.

A value's index is made from its row id and names the unit that holds it, so nobody has to be asked where a value is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import zmq
from tensordict import TensorDict

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.rowids import ATTEMPT_BITS, COUNTER_BITS, INCARNATION_BITS, WRITER_BITS
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.transferqueue.loop import LoopThread
from hpcrl.run.errors import host

T = TypeVar("T")
_OF_ATTEMPT = (1 << (COUNTER_BITS + WRITER_BITS + INCARNATION_BITS)) - 1
MAX_UNITS = 1 << (ATTEMPT_BITS - 1)
_TQ_ERRORS = (RuntimeError, ValueError, KeyError, OSError, zmq.ZMQError)


def value_index(first_row: int, unit: int, units: int) -> int:
    """Index of a block's values on a unit: unique within the attempt, and TransferQueue's routing leads to the unit."""
    return (first_row & _OF_ATTEMPT) * units + unit


class Mover:
    """One process's connection to the storage units. Thread-safe.

    Args:
        name: the process, ``group.rank``.
        endpoints: of the units, as they published them, in the order of their ranks.
        key: the run's secret.
        unit: the unit that this process writes to, the nearest one.
        call_s: deadline of each call [s].
    """

    def __init__(self, name: str, endpoints: Sequence[Mapping[str, Any]], *, key: str, unit: int, call_s: float) -> None:
        self._name, self._unit, self._units, self._call_s = name, unit, len(endpoints), call_s
        self._where = ", ".join(f"{e['ip']}:{next(iter(e['ports'].values()))}" for e in endpoints)
        compat.use_key(key)
        self._loop = LoopThread(f"{name}-mover")
        self._manager = compat.connect_units([dict(endpoint) for endpoint in endpoints])

    def write(self, field: str, blocks: Sequence[tuple[int, np.ndarray]]) -> list[Ref]:
        """Keep bytes of blocks, by first row id; they are durable on the unit's node when this returns.

        Raises:
            DataPlaneError: the unit did not take them within the deadline.
        """
        indexes = [value_index(first, self._unit, self._units) for first, _ in blocks]
        data = TensorDict({field: _tensor([array for _, array in blocks])}, batch_size=[len(blocks)])
        self._call(f"store {field}", self._manager.put_data(data, compat.meta_of(indexes, [field])))
        return [
            Ref(kind="tq", size=array.nbytes, where=field, index=index)
            for index, (_, array) in zip(indexes, blocks, strict=True)
        ]

    def read(self, refs: Sequence[Ref]) -> list[np.ndarray]:
        """The bytes again.

        Raises:
            DataPlaneError: a unit did not give them within the deadline.
        """
        by_field: dict[str, list[int]] = {}
        for position, ref in enumerate(refs):
            by_field.setdefault(ref.where, []).append(position)

        async def fetch() -> list[Any]:
            metas = [compat.meta_of([refs[p].index for p in positions], [field]) for field, positions in by_field.items()]
            return await asyncio.gather(*(self._manager.get_data(meta) for meta in metas))

        found: list[np.ndarray] = [np.empty(0, np.uint8)] * len(refs)
        for (field, positions), data in zip(by_field.items(), self._call("fetch rows", fetch()), strict=True):
            for position, value in zip(positions, data[field].unbind(), strict=True):
                found[position] = value.numpy()
        return found

    def clear(self, refs: Sequence[Ref]) -> None:
        """Let the units forget values. What a unit that is away keeps goes with the attempt."""
        indexes = sorted({ref.index for ref in refs})
        if indexes:
            self._call("clear rows", self._manager.clear_data(compat.meta_of(indexes, [])))

    def close(self) -> None:
        """Let go of threads and sockets."""
        if self._loop.close():
            self._manager.close()

    def _call(self, what: str, action: Coroutine[Any, Any, T]) -> T:
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
