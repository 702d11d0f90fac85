"""Host memory that the trainer copies its state to and its writer process reads."""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch

from hpcrl.checkpoint.state.plan import Place

log = logging.getLogger(__name__)


class SharedMemory:
    """Memory without a name: it goes when the last process that has it open ends, however it ends.

    Args:
        descriptor: of memory that another process made; None makes some.

    Attributes:
        tensors: views of the places.
    """

    def __init__(self, places: Sequence[Place], descriptor: int | None = None) -> None:
        size = max(1, max((place.start + place.size for place in places), default=0))
        if descriptor is None:
            descriptor = os.memfd_create("hpcrl-state", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self.tensors = [self._view(place) for place in places]
        self._pinned: int | None = None

    def pin(self) -> None:
        """Let a GPU copy into it by itself; where the driver does not allow that, copies take longer."""
        address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        cuda: Any = torch.cuda
        code = int(cuda.cudart().cudaHostRegister(address, len(self._map), 0))
        if code:
            log.warning("%d bytes of host memory cannot be registered with the GPU (CUDA error %d)", len(self._map), code)
        else:
            self._pinned = address

    def close(self) -> None:
        """Let go of it; the tensors are not to be used any more."""
        if self._pinned is not None:
            cuda: Any = torch.cuda
            cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.tensors = []

    def _view(self, place: Place) -> torch.Tensor:
        if not place.size:
            return torch.empty(place.shape, dtype=place.dtype)
        data = torch.frombuffer(self._map, dtype=torch.uint8, offset=place.start, count=place.size)
        return data.view(place.dtype).reshape(place.shape)


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy to host memory in one thread, the interpreter free meanwhile; from a GPU it is only begun."""
    if source.device.type != "cpu":
        target.copy_(source, non_blocking=True)
    elif source.numel():
        # numpy copies with the calling thread alone: torch's threads are the trainer's.
        _bytes(target)[:] = _bytes(source)


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
