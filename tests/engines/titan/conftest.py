"""Trainers of tiny models, and batches for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def random_batch() -> Callable[..., list[Any]]:
    """Makes groups of random samples; the last of each group has no signal."""
    from hpcrl.testing.batches import make_batch

    return make_batch


@pytest.fixture
def trainer_of() -> Iterator[Callable[..., Any]]:
    """Makes trainers of a model in float32, and closes them."""
    from hpcrl.engines.titan.settings import TrainerSettings, World
    from hpcrl.engines.titan.trainer import TitanTrainer

    made: list[TitanTrainer] = []

    def make(model: Path, **changes: Any) -> TitanTrainer:
        plain = TrainerSettings(model=str(model), compute_dtype="float32", publish_dtype="float32", lr=1e-3)
        made.append(TitanTrainer(dataclasses.replace(plain, **changes), World()))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


@pytest.fixture
def weights_of() -> Callable[[Any], dict[str, Any]]:
    """Copies of what a trainer publishes."""
    return lambda trainer: {name: tensor.detach().clone() for name, tensor in trainer.hf_tensors()}
