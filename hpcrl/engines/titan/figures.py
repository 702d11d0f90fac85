"""Figures of one batch, gathered over micro-batches and reduced over ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from hpcrl.algorithms.policy_loss import PolicyLoss

_SUMS = ("loss", "tokens_packed", "tokens", "clipped", "kl", "gap", "entropy")
# Of these, those that are summed up token by token where the tokens are.
_OF_TOKENS = _SUMS[3:]
_SECONDS = ("pack_s", "forward_s", "backward_s", "optimizer_s", "host_s", "train_s")
# Of the parts of a step: those that add up, those of which the greatest counts, and the mean of the others over tokens.
_ADDED = frozenset({"samples", "samples_kept", "samples_masked", "tokens", "tokens_packed", "updates", *_SECONDS})
_GREATEST = frozenset({"logprob_gap_max"})
_LAST = frozenset({"lr", "grad_norm"})


class Reducer(Protocol):
    """Sums and maxima over ranks."""

    def reduce(self, values: np.ndarray) -> np.ndarray: ...  # noqa: D102
    def reduce_max(self, values: np.ndarray) -> np.ndarray: ...  # noqa: D102


class Figures:
    """Collects sums, a maximum and seconds of this rank, without waiting for the device until the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._seconds = dict.fromkeys(_SECONDS, 0.0)
        self._values = {"grad_norm": 0.0, "samples_masked": 0.0}
        self._tokens = torch.zeros(len(_OF_TOKENS), dtype=torch.float64, device=device)
        self._gap_max = torch.zeros((), device=device)
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def time(self, name: str, *, host: bool = False) -> Iterator[None]:
        """Add the seconds inside: those of the clock, on a GPU those from the first to the last of its own work."""
        if host or self._device.type != "cuda":
            start = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - start
            return
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        yield
        ended.record()
        self._events.append((name, began, ended))

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Add the seconds inside to ``train_s``, with the device's work done, and to ``host_s`` without waiting for that."""
        start = time.perf_counter()
        yield
        self._seconds["host_s"] += time.perf_counter() - start
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._seconds["train_s"] += time.perf_counter() - start

    def add(self, **values: float) -> None:
        """Add to sums over micro-batches."""
        for name, value in values.items():
            self._sums[name] += value

    def set(self, **values: float) -> None:
        """Set figures that are the same on every rank."""
        self._values.update(values)

    def add_tokens(self, out: PolicyLoss, current: torch.Tensor) -> None:
        """Add the tokens of one chunk."""
        self._sums["tokens"] += len(current)
        self._tokens += torch.stack([out.clipped.sum(), out.kl.sum(), out.gap.sum(), -current.sum()])
        self._gap_max = torch.maximum(self._gap_max, out.gap.max())

    def reduced(self, ranks: Reducer) -> dict[str, float]:
        """Everything as plain numbers, the same on every rank. A collective."""
        for name, value in zip(_OF_TOKENS, self._tokens.tolist(), strict=True):
            self._sums[name] = value
        for name, began, ended in self._events:
            self._seconds[name] += began.elapsed_time(ended) / 1000
        self._events.clear()
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


def joined(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of a step from those of its parts: what counts adds up, means are over the tokens of all."""
    tokens = np.array([part["tokens"] for part in parts])
    shares = tokens / tokens.sum() if tokens.sum() else np.full(len(parts), 1 / len(parts))
    made: dict[str, float] = {}
    for name in parts[-1]:
        values = np.array([part[name] for part in parts])
        if name in _LAST:
            made[name] = parts[-1][name]
        elif name in _GREATEST:
            made[name] = float(values.max())
        elif name in _ADDED:
            made[name] = type(parts[-1][name])(values.sum())
        else:
            made[name] = float((values * shares).sum())
    made["tokens_per_s"] = made["tokens"] / max(made["train_s"], 1e-9)
    return made
