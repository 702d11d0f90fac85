"""Random states of a process, as bytes that hold nothing but tensors and numbers."""

from __future__ import annotations

import io
import pickle
import random
from typing import Any

import numpy as np
import torch


def capture() -> bytes:
    """The states of torch on the CPU and on this process's GPU, of numpy's global generator and of Python's."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if _uses_gpu() else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys, np.int64)), int(position), int(has_gauss), float(cached)],
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
    }
    buffer = io.BytesIO()
    torch.save(states, buffer)
    return buffer.getvalue()


def restore(data: bytes) -> None:
    """Back to :func:`capture`; a GPU's state only where this process uses one.

    Raises:
        RuntimeError, KeyError, TypeError, ValueError: the bytes are not from there.
    """
    try:
        states = torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"these are no random states: {error}") from error
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and _uses_gpu():
        torch.cuda.set_rng_state(states["cuda"])
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))


def _uses_gpu() -> bool:
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized())
