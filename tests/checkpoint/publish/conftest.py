"""Policies that change as in training, and publishers of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.view.verify import verify_versions
from hpcrl.checkpoint.view.versions import list_versions

Tensors = dict[str, torch.Tensor]


class Policy:
    """The tiny model in bfloat16, a few values of which move with each step."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.tensors: Tensors = {n: t.bfloat16() for n, t in load_file(model / "model.safetensors").items()}
        self._generator = torch.Generator().manual_seed(0)

    def step(self, share: float = 0.01) -> Tensors:
        """Move a share of the values to the next in line; returns the tensors, which are copies."""
        for tensor in self.tensors.values():
            moved = torch.rand(tensor.shape, generator=self._generator) < share
            tensor.view(torch.int16).add_(moved.to(torch.int16))
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in self.tensors.items()]

    def publisher(self, folder: Path, *, attempt: int = 1, **settings: object) -> Publisher:
        return Publisher(folder, self.model, self.specs, attempt=attempt, **settings)  # type: ignore[arg-type]


@pytest.fixture
def policy(tiny_model: Path) -> Policy:
    return Policy(tiny_model)


@pytest.fixture
def damage() -> Callable[[Path], list[str]]:
    """What `hpcrl ckpt verify` finds in a folder of versions, a line each with the file's name."""

    def look(folder: Path) -> list[str]:
        found = list_versions(folder)
        findings = verify_versions(folder, found, [info.version for info in found])
        return [f"{finding.file.name}: {finding.text}" for finding in findings]

    return look
