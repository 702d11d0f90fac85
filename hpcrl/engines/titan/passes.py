"""Forward passes over micro-batches, and the loss of their tokens. Import only in the process that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcrl.engines.titan.figures import Figures
from hpcrl.engines.titan.packing import MicroBatch, Sequences
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.settings import TrainerSettings

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
TokenLoss = Callable[[torch.Tensor, int, int], torch.Tensor]


class Passes:
    """A model with the head of :mod:`hpcrl.engines.titan.head` on one device.

    Args:
        by_sequence: attention takes sequences, not a mask.
    """

    def __init__(self, model: Any, settings: TrainerSettings, device: torch.device, *, by_sequence: bool) -> None:
        self._model, self._settings, self._device, self._by_sequence = model, settings, device, by_sequence

    def forward(self, micro: MicroBatch, loss: TokenLoss | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, differentiable; log-probabilities of the targets); with FSDP a collective."""
        from hpcrl.engines.titan.attention import additive_mask
        from hpcrl.engines.titan.head import Task

        self._model.lm_head.task = Task(self._on_device(micro.source), self._on_device(micro.targets), loss)
        seen: Any
        if self._by_sequence:
            made = micro.sequences()
            keys = None if made.keys is None else self._on_device(made.keys)
            starts = (self._on_device(made.query_starts), self._on_device(made.key_starts))
            seen = Sequences(keys, *starts, made.most_queries, made.most_keys)
        else:
            dtype = DTYPES[self._settings.compute_dtype]
            seen = additive_mask(self._on_device(micro.segment), self._on_device(micro.parent), dtype)
        tokens, positions = self._on_device(micro.tokens), self._on_device(micro.positions)
        return self._model(tokens, positions=positions, attention_masks=seen)  # type: ignore[no-any-return]

    def score(self, micros: Sequence[MicroBatch], rounds: int) -> dict[int, torch.Tensor]:
        """Log-probabilities by index of the sample, for this rank's micro-batches; with FSDP a collective.

        Args:
            rounds: micro-batches that every rank runs.
        """
        scored: dict[int, torch.Tensor] = {}
        for number in range(rounds):
            micro = micros[number] if number < len(micros) else MicroBatch.empty()
            with torch.no_grad():
                _, logprobs = self.forward(micro, None)
            pieces: Any = torch.split(logprobs, list(micro.lengths))
            scored.update(zip(micro.samples, pieces, strict=True))
        return scored

    def token_loss(
        self,
        micro: MicroBatch,
        batch: Sequence[Sample],
        weights: np.ndarray,
        proximal: Mapping[int, torch.Tensor] | None,
        figures: Figures,
    ) -> TokenLoss:
        """The policy loss of a micro-batch's targets, which adds to the figures.

        Args:
            weights: of each token of each sample of the batch.
            proximal: log-probabilities under the proximal policy; None = it is the current one.
        """
        from hpcrl.algorithms.policy_loss import policy_loss

        members, settings = list(micro.samples), self._settings
        weight = self._of_tokens(weights[members], micro)
        advantage = self._of_tokens(np.array([batch[index].advantage for index in members]), micro)
        flat = [batch[index].behaviour_logprobs for index in members]
        behaviour = self._on_device(np.concatenate(flat) if flat else np.zeros(0, np.float32))
        near = torch.cat([proximal[index] for index in members]) if proximal and members else None

        def loss(current: torch.Tensor, first: int, last: int) -> torch.Tensor:
            here = slice(first, last)
            out = policy_loss(
                current,
                current.detach() if near is None else near[here],
                behaviour[here],
                advantage[here],
                clip_low=settings.clip_low,
                clip_high=settings.clip_high,
                importance_cap=settings.importance_cap,
            )
            figures.add_tokens(out, current.detach())
            return out.loss * weight[here]

        return loss

    def _of_tokens(self, values: np.ndarray, micro: MicroBatch) -> torch.Tensor:
        return self._on_device(np.repeat(values, micro.lengths).astype(np.float32))

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        held = torch.from_numpy(array)
        if self._device.type == "cpu":
            return held
        # From pageable memory the copy would make the host wait for the device.
        return held.pin_memory().to(self._device, non_blocking=True)


def mean_gaps(scored: Mapping[int, torch.Tensor], batch: Sequence[Sample]) -> np.ndarray:
    """Mean |scored - behaviour| log-probability of each sample, float64 (samples,); 0 for those not scored here."""
    gaps = np.zeros(len(batch))
    if scored:
        lengths = [len(values) for values in scored.values()]
        flat = torch.cat(list(scored.values())).cpu().numpy().astype(np.float64)
        flat -= np.concatenate([batch[index].behaviour_logprobs for index in scored])
        gaps[list(scored)] = np.add.reduceat(np.abs(flat), np.cumsum([0, *lengths[:-1]])) / lengths
    return gaps
