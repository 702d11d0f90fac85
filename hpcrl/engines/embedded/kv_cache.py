"""A key-value cache with room ahead: a token is written in place, and rows can be dropped while decoding goes on."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One attention layer's keys and values, (rows, heads, capacity, head dimension), of which ``length`` are filled."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.keys: Any = None
        self.values: Any = None
        self._capacity = capacity
        self._length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self._length + key_states.shape[-2]
        if self.keys is None:
            self.device, self.dtype = key_states.device, key_states.dtype
            self.keys = self._room(key_states, end)
            self.values = self._room(value_states, end)
            self.is_initialized = True
        self.keys[:, :, self._length : end] = key_states
        self.values[:, :, self._length : end] = value_states
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._length

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` positions, keeping what is filled."""
        if self.keys is None or capacity <= self._capacity:
            self._capacity = max(capacity, self._capacity)
            return
        self._capacity = capacity
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, : self._length] = old[:, :, : self._length]
            setattr(self, name, new)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order."""
        length = self._length
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty((len(rows), *old.shape[1:]))
            torch.index_select(old[:, :, :length], 0, rows, out=new[:, :, :length])
            setattr(self, name, new)

    def adopt(self, other: _Layer, source: torch.Tensor, target: torch.Tensor, rows: int, length: int) -> None:
        """Copy rows ``source`` of a prefilled layer to rows ``target`` here, right-aligned at ``length`` positions."""
        if self.keys is None:
            shape = other.keys.shape
            self.keys = other.keys.new_zeros((rows, shape[1], self._capacity, shape[3]))
            self.values = other.values.new_zeros((rows, shape[1], self._capacity, other.values.shape[3]))
            self.is_initialized = True
            self._length = length
        filled = other.get_seq_length()
        window = slice(length - filled, length)
        self.keys[target, :, window] = other.keys[source, :, :filled]
        self.values[target, :, window] = other.values[source, :, :filled]

    def _room(self, states: torch.Tensor, end: int) -> torch.Tensor:
        rows, heads, _, width = states.shape
        return states.new_empty((rows, heads, max(self._capacity, end), width))


class RowCache(Cache):  # type: ignore[misc]
    """The cache of a batch of rows that decode in step; every layer is full attention.

    Args:
        num_layers: attention layers of the model.
        capacity: positions to make room for at first.
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        super().__init__(layers=[_Layer(capacity) for _ in range(num_layers)])
        self.capacity = capacity

    @property
    def nbytes(self) -> int:
        """What all keys and values take, filled or not."""
        held = (tensor for layer in self.layers for tensor in (layer.keys, layer.values))
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def reserve(self, positions: int, most: int) -> None:
        """Make room for ``positions``; grows by half as much again, up to ``most``, so that copies stay rare."""
        if positions > self.capacity:
            self.capacity = min(max(positions, self.capacity * 3 // 2), max(positions, most))
            for layer in self.layers:
                layer.grow(self.capacity)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (int64 indexes), in this order."""
        for layer in self.layers:
            layer.keep(rows)

    def adopt(self, other: RowCache, source: torch.Tensor, target: torch.Tensor, *, rows: int, length: int) -> None:
        """Copy prefilled rows in, so that each ends at position ``length``; ``rows`` is this cache's number of rows."""
        for layer, prefilled in zip(self.layers, other.layers, strict=True):
            layer.adopt(prefilled, source, target, rows, length)
