"""A copy of all that training goes on from, in the host's memory. Import only in the process that trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Held:
    """This rank's part of a trainer's state as it was. Its memory is taken once and kept.

    Args:
        device: that the state is on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[str, torch.Tensor] = {}
        self._random: torch.Tensor | None = None

    def keep(self, state: Mapping[str, Any]) -> None:
        """Copy the tensors, and the random state of the host."""
        cuda = self._device.type == "cuda"
        for name, tensor in state.items():
            local = _local(tensor)
            if name not in self._copies:
                self._copies[name] = torch.empty_like(local, device="cpu", pin_memory=cuda)
            self._copies[name].copy_(local, non_blocking=True)
        self._random = torch.get_rng_state()
        if cuda:
            torch.cuda.synchronize(self._device)

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Write what was kept into the same tensors.

        Raises:
            RuntimeError: nothing was kept.
        """
        if self._random is None:
            raise RuntimeError("nothing was kept that could be put back")
        with torch.no_grad():
            for name, tensor in state.items():
                _local(tensor).copy_(self._copies[name])
        torch.set_rng_state(self._random)


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]
