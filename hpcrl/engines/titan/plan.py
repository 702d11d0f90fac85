"""What this rank computes of a batch: which samples, in which micro-batches, with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcrl.algorithms.normalise import token_weights
from hpcrl.engines.titan.packing import Layout, MicroBatch
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.engines.titan.shares import shares


class RankInfo(Protocol):
    """Which rank this is, and a maximum over all of them."""

    rank: int
    size: int

    def reduce_max(self, values: np.ndarray) -> np.ndarray: ...  # noqa: D102


@dataclass(frozen=True)
class Work:
    """One optimizer step of this rank.

    Attributes:
        micro: this rank's micro-batches.
        rounds: micro-batches that every rank runs; those that this rank lacks are empty ones.
        weights: float64 (samples of the batch,), of each token of a sample in the loss. All ranks' tokens sum to 1.
    """

    micro: list[MicroBatch]
    rounds: int
    weights: np.ndarray


def plan_steps(
    batch: Sequence[Sample], settings: TrainerSettings, layout: Layout, ranks: RankInfo, *, updates: int
) -> list[Work]:
    """At most so many optimizer steps on a batch, none if no sample has an advantage. A collective."""
    kept = [index for index, sample in enumerate(batch) if sample.advantage != 0]
    parts = [part for part in shares(batch, kept, updates) if part]
    micros, weights = [], []
    for part in parts:
        mine = shares(batch, part, ranks.size)[ranks.rank]
        micros.append(layout.pack(batch, mine))
        weight = np.zeros(len(batch))
        weight[part] = token_weights(np.array([len(batch[index].response_ids) for index in part]), settings.normalisation)
        weights.append(weight)
    rounds: np.ndarray = ranks.reduce_max(np.array([len(micro) for micro in micros])) if parts else np.zeros(0)
    return [Work(micro, int(count), weight) for micro, count, weight in zip(micros, rounds, weights, strict=True)]


def plan_scoring(batch: Sequence[Sample], layout: Layout, ranks: RankInfo) -> Work:
    """Micro-batches for the log-probabilities of all samples; the weights are 0."""
    mine = shares(batch, range(len(batch)), ranks.size)[ranks.rank]
    micro = layout.pack(batch, mine)
    return Work(micro, len(micro), np.zeros(len(batch)))
