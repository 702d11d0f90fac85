"""Trainers of tiny models, and batches for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VOCABULARY = 128


def _batch(seed: int = 0, groups: int = 3, each: int = 4, longest: int = 12) -> list[Any]:
    from hpcrl.engines.titan.samples import Sample

    rng, samples = np.random.default_rng(seed), []
    for group in range(groups):
        prompt = rng.integers(2, VOCABULARY, rng.integers(3, 9)).astype(np.int32)
        for number in range(each):
            response = rng.integers(2, VOCABULARY, rng.integers(1, longest)).astype(np.int32)
            samples.append(
                Sample(
                    prompt_ids=prompt,
                    response_ids=response,
                    behaviour_logprobs=rng.normal(-np.log(VOCABULARY), 0.1, len(response)).astype(np.float32),
                    advantage=float(rng.normal()) if number < each - 1 else 0.0,
                    group=group,
                )
            )
    return samples


@pytest.fixture
def random_batch() -> Callable[..., list[Any]]:
    """Makes groups of random samples; the last of each group has no signal."""
    return _batch


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
