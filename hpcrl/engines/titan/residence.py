"""Where a trainer's state lives: on its device, or in the host's memory while others use the device.

Import only in the process that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hpcrl.checkpoint.state.memory import SharedMemory
from hpcrl.checkpoint.state.plan import Place
from hpcrl.engines.device_memory import Released
from hpcrl.engines.titan.optimizer import state_of

_ALIGNED = 64


@dataclass(frozen=True)
class _Part:
    """A piece of the device's memory, and its copy on the host; what can be made again has none."""

    storage: Any
    size: int
    copy: torch.Tensor | None


class Residence:
    """This rank's part of a trainer's weights and optimizer state.

    Only the memory under the tensors goes and comes back: they stay the same objects, so whatever shares it (tied weights,
    what FSDP keeps of its shards) needs not know.

    Args:
        weights: see :mod:`hpcrl.engines.titan.precision`.
        settle: waits until nobody reads the tensors any more.
    """

    def __init__(self, weights: Any, optimizer: Any, device: torch.device, settle: Callable[[], None]) -> None:
        self._weights, self._optimizer, self._device, self._settle = weights, optimizer, device, settle
        self._host: SharedMemory | None = None
        self._sizes: list[int] = []
        self._parts: dict[int, _Part] = {}

    def release(self) -> Released:
        """Move it to the host, bit for bit, and give the device's memory back; between batches, with no gradients left.

        Once more is no error.
        """
        if not self._parts:
            self._settle()
            kept = _storages(list(state_of(self._weights.named, self._optimizer).values()))
            scratch = _storages(self._weights.scratch)
            copies = self._copies([storage.nbytes() for storage in kept.values()])
            for storage, copy in zip(kept.values(), copies, strict=True):
                copy.copy_(_bytes(storage), non_blocking=True)
            self._synchronize()
            parts = {key: _Part(s, s.nbytes(), copy) for (key, s), copy in zip(kept.items(), copies, strict=True)}
            self._parts = {**{key: _Part(s, s.nbytes(), None) for key, s in scratch.items()}, **parts}
            for part in self._parts.values():
                _drop(part.storage)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        left = torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0
        return Released(sum(part.size for part in self._parts.values()), left)

    def resume(self) -> int:
        """Move it back; returns the bytes that it takes on the device. Once more is no error."""
        parts, self._parts = self._parts, {}
        if parts:
            # The copies stay as they are until the next release: a save that was begun meanwhile may be reading them.
            for part in parts.values():
                if part.storage.nbytes() != part.size:
                    part.storage.resize_(part.size)
                if part.copy is not None:
                    _bytes(part.storage).copy_(part.copy, non_blocking=True)
            self._synchronize()
            self._weights.renew()
        return sum(part.size for part in parts.values())

    def close(self) -> None:
        """Let go of the host's memory."""
        if self._host is not None:
            self._host.close()
            self._host, self._parts = None, {}

    def state(self) -> dict[str, Any]:
        """See :func:`~hpcrl.engines.titan.optimizer.state_of`: the tensors in use, or while they are released their copies."""
        state = state_of(self._weights.named, self._optimizer)
        return {name: self._on_host(tensor) for name, tensor in state.items()} if self._parts else state

    def _on_host(self, tensor: Any) -> Any:
        local = _local(tensor)
        part = self._parts.get(local.untyped_storage()._cdata)
        if part is None or part.copy is None:
            return tensor
        view = part.copy.view(local.dtype).as_strided(local.size(), local.stride(), local.storage_offset())
        return view if local is tensor else type(tensor)(view, tensor._spec, requires_grad=False)

    def _copies(self, sizes: list[int]) -> list[torch.Tensor]:
        """Host memory of these sizes, taken once."""
        if self._host is None or sizes != self._sizes:
            if self._host is not None:
                self._host.close()
            places, end = [], 0
            for size in sizes:
                places.append(Place(end, (size,), torch.uint8))
                end += -(-size // _ALIGNED) * _ALIGNED
            self._host, self._sizes = SharedMemory(places), sizes
            if self._device.type == "cuda":
                self._host.pin()
        return self._host.tensors

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _local(tensor: Any) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)  # type: ignore[no-any-return]


def _storages(tensors: list[Any]) -> dict[int, Any]:
    """What is under some tensors, each once, but for what is empty."""
    found = [_local(tensor).untyped_storage() for tensor in tensors]
    return {storage._cdata: storage for storage in found if storage.nbytes()}


def _drop(storage: Any) -> None:
    """Free it. On a CPU, memory that numpy has seen cannot be freed under it, and is spoilt instead."""
    if storage.resizable():
        storage.resize_(0)
    else:
        _bytes(storage).fill_(0xFF)


def _bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
