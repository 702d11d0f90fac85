"""Prefill: every unique prompt goes through the model once, in batches of like lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hpcrl.engines.embedded.kv_cache import RowCache
from hpcrl.engines.embedded.model import LoadedModel

# Scoring needs logits at every prompt position, a vocabulary wide each: smaller batches bound the memory.
_SCORING_TOKENS = 1024


@dataclass
class PrefilledBatch:
    """What prefill made of some prompts.

    Attributes:
        indexes: which of the prompts given, in this batch's order.
        logits: (prompts, vocabulary) after each prompt's last token.
        prompt_logprobs: for each prompt, log-probabilities of its tokens 1, 2, … given those before; None if not asked for.
    """

    indexes: list[int]
    cache: RowCache
    logits: torch.Tensor
    prompt_logprobs: list[torch.Tensor] | None


def prefill(model: LoadedModel, prompts: list[list[int]], *, batch_tokens: int, score: bool) -> Iterator[PrefilledBatch]:
    """Run prompts through the model in batches of at most ``batch_tokens`` padded tokens (always at least one prompt)."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    most = min(batch_tokens, _SCORING_TOKENS) if score else batch_tokens
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(prompts[index]) > most:
            yield _run(model, prompts, batch, score)
            batch = []
        batch.append(index)
    if batch:
        yield _run(model, prompts, batch, score)


def _run(model: LoadedModel, prompts: list[list[int]], batch: list[int], score: bool) -> PrefilledBatch:
    lengths = [len(prompts[i]) for i in batch]
    width = max(lengths)
    ids = torch.tensor([[0] * (width - len(prompts[i])) + prompts[i] for i in batch], device=model.device)
    positions = (torch.arange(width, device=model.device) + torch.tensor(lengths, device=model.device)[:, None] - width).clamp(
        min=0
    )
    mask = None
    if min(lengths) < width:
        column = torch.arange(width, device=model.device)
        real = column >= width - torch.tensor(lengths, device=model.device)[:, None]
        # A padding position sees itself: a row of the mask without any entry would make NaN.
        mask = (real[:, None, :] & (column <= column[:, None])) | torch.eye(width, dtype=torch.bool, device=model.device)
        mask = mask[:, None]
    cache = RowCache(model.num_layers, width)
    logits = model.forward(ids, positions, mask, cache, every_position=score)
    scored = None
    if score:
        scored = [_score(logits[row, width - length :], ids[row, width - length :]) for row, length in enumerate(lengths)]
    return PrefilledBatch(batch, cache, logits[:, -1], scored)


def _score(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    scores = logits[:-1].float()
    return scores.gather(1, ids[1:, None]).squeeze(1) - scores.logsumexp(-1)
