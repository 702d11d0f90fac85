"""What is taken of a device's memory, and what a holder says that it let go of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

# What of an engine can be let go of, by SGLang's names.
Memory = Literal["weights", "kv_cache"]


@dataclass(frozen=True)
class Released:
    """By the holder's own count.

    Attributes:
        freed: let go of [bytes].
        left: still held [bytes].
    """

    freed: int
    left: int


class DeviceMemory(Protocol):
    """Something that can do without its memory on a device for a while."""

    def release(self) -> Released | None:
        """Let go of it; None where it keeps no count."""

    def resume(self) -> int | None:
        """Take it again [bytes]; None where it keeps no count."""


def gpu_used_bytes(gpu: int) -> int:
    """What all processes together have taken of a GPU's memory.

    By NVML where its Python package (nvidia-ml-py) is there, which leaves the GPU alone; else by CUDA, of which a process that
    has not used the GPU before gets a context there, about half a GiB.

    Args:
        gpu: index as CUDA counts in this process.
    """
    import torch

    cuda: Any = torch.cuda
    try:
        return int(cuda.device_memory_used(gpu))
    except (ImportError, AttributeError, RuntimeError):
        free, total = cuda.mem_get_info(gpu)
        return int(total - free)
