"""Float32 master weights and the ones that a forward pass computes with.

With several ranks FSDP casts while it gathers. A single process has nothing to gather, and needs neither a process group nor
the copies that gathering makes: it keeps its compute weights between steps and renews them after each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hpcrl.engines.titan.compat import plain_name


class Weights:
    """Weights of which the optimizer sees exactly what the model computes with, or that FSDP casts.

    Attributes:
        named: (name, parameter) that the optimizer steps on, float32, each tied one once.
        scratch: further tensors, of which :meth:`renew` makes what is needed between two batches.
    """

    def __init__(self, model: nn.Module) -> None:
        self.scratch: list[torch.Tensor] = []
        self.named = [(plain_name(name), parameter) for name, parameter in model.named_parameters()]

    def collect_gradients(self) -> None:
        """Call after each backward pass."""

    def clear_gradients(self) -> None:
        """Forget the gradients; call after each optimizer step."""
        for _, parameter in self.named:
            parameter.grad = None

    def renew(self) -> None:
        """Compute with what the optimizer or a load just wrote."""

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Inside, the model's own parameters are the float32 ones."""
        yield


class CastWeights(Weights):
    """Float32 masters of a model whose own parameters become ``dtype``. For a model that is not sharded.

    Args:
        blank: the model's weights are yet to be loaded, and then renewed.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, blank: bool = False) -> None:
        cast = list(model.named_parameters())
        self._cast: list[torch.Tensor] = [parameter for _, parameter in cast]
        self.named = [(plain_name(name), nn.Parameter(parameter.data)) for name, parameter in cast]
        self._masters: list[torch.Tensor] = [parameter for _, parameter in self.named]
        for parameter in self._cast:
            parameter.data = torch.empty_like(parameter.data, dtype=dtype) if blank else parameter.data.to(dtype)
        # Kept for good: to allocate as much in every step costs more than to fill it. Each is filled before it is read.
        self._sums = [torch.empty_like(master) for master in self._masters]
        self.scratch = [*self._cast, *self._sums]

    def collect_gradients(self) -> None:
        """Add the compute weights' gradients to the masters' in float32."""
        held = [
            (parameter, master, total)
            for parameter, master, total in zip(self._cast, self._masters, self._sums, strict=True)
            if parameter.grad is not None
        ]
        # All at once: a GPU waits for as many single launches as there are weights otherwise.
        for first in (True, False):
            mine = [(parameter.grad, total) for parameter, master, total in held if (master.grad is None) == first]
            if mine:
                grads, totals = zip(*mine, strict=True)
                (torch._foreach_copy_ if first else torch._foreach_add_)(totals, grads)
        for parameter, master, total in held:
            master.grad, parameter.grad = total, None

    def renew(self) -> None:
        """Cast the masters into the compute weights."""
        with torch.no_grad():
            torch._foreach_copy_(self._cast, self._masters)

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Inside, the model's own parameters are the float32 ones."""
        held = [parameter.data for parameter in self._cast]
        for parameter, master in zip(self._cast, self._masters, strict=True):
            parameter.data = master.data
        try:
            yield
        finally:
            for parameter, data in zip(self._cast, held, strict=True):
                parameter.data = data
