"""Figures of one batch, gathered over micro-batches and reduced over ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from hpcrl.algorithms.policy_loss import PolicyLoss

_SUMS = ("loss", "tokens_packed", "tokens", "clipped", "kl", "gap", "entropy")
_SECONDS = ("pack_s", "forward_s", "backward_s", "optimizer_s", "train_s")


class Reducer(Protocol):
    """Sums and maxima over ranks."""

    def reduce(self, values: np.ndarray) -> np.ndarray: ...  # noqa: D102
    def reduce_max(self, values: np.ndarray) -> np.ndarray: ...  # noqa: D102


class Figures:
    """Collects sums, a maximum and seconds of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._seconds = dict.fromkeys(_SECONDS, 0.0)
        self._values = {"grad_norm": 0.0}
        self._tokens = torch.zeros(5, dtype=torch.float64, device=device)
        self._gap_max = torch.zeros((), device=device)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the seconds inside, with the device's work done at both ends."""
        self._finish_device()
        start = time.perf_counter()
        yield
        self._finish_device()
        self._seconds[name] += time.perf_counter() - start

    def add(self, **values: float) -> None:
        """Add to sums over micro-batches."""
        for name, value in values.items():
            self._sums[name] += value

    def set(self, **values: float) -> None:
        """Set figures that are the same on every rank."""
        self._values.update(values)

    def add_tokens(self, out: PolicyLoss, current: torch.Tensor) -> None:
        """Add the tokens of one chunk."""
        sums = [out.clipped.sum(), out.kl.sum(), out.gap.sum(), -current.sum()]
        self._tokens += torch.stack([torch.tensor(len(current), device=self._device), *sums]).double()
        self._gap_max = torch.maximum(self._gap_max, out.gap.max())

    def reduced(self, ranks: Reducer) -> dict[str, float]:
        """Everything as plain numbers, the same on every rank. A collective."""
        for name, value in zip(_SUMS[2:], self._tokens.tolist(), strict=True):
            self._sums[name] = value
        sums = dict(zip(_SUMS, ranks.reduce(np.array(list(self._sums.values()))).tolist(), strict=True))
        high = ranks.reduce_max(np.array([float(self._gap_max), *self._seconds.values()])).tolist()
        seconds = dict(zip(_SECONDS, high[1:], strict=True))
        count = max(sums["tokens"], 1.0)
        return {
            "loss": sums["loss"],
            **self._values,
            "clip_fraction": sums["clipped"] / count,
            "kl": sums["kl"] / count,
            "logprob_gap_mean": sums["gap"] / count,
            "logprob_gap_max": high[0],
            "entropy": sums["entropy"] / count,
            "tokens": sums["tokens"],
            "tokens_packed": sums["tokens_packed"],
            "tokens_per_s": sums["tokens"] / max(seconds["train_s"], 1e-9),
            **seconds,
        }

    def _finish_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
