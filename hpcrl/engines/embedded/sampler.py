"""Vectorised sampling of one token for each row of a batch, from uniform numbers drawn beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hpcrl.engines.embedded.sampling_params import SamplingParams

# Entries of the vocabulary that are summed together in the first of the two steps of the inverse CDF.
_BLOCK = 256


def draw_uniforms(seed: int, sample: int, count: int) -> np.ndarray:
    """float64 (count,) in [0, 1), a function of the seed and of the sample's index within its request alone."""
    sequence = np.random.SeedSequence([seed & 0xFFFF_FFFF_FFFF_FFFF, sample])
    return np.random.Generator(np.random.Philox(sequence)).random(count)


class BatchSampler:
    """Samples a token for each row, every row with its own parameters.

    Args:
        params: one entry a row.
        device: where the logits will be.
    """

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        # Greedy rows are scored at temperature 1, as SGLang does.
        self._temperature = column([1.0 if p.greedy else p.temperature for p in params])
        self._greedy = torch.tensor([p.greedy for p in params], dtype=torch.bool, device=device)
        self._top_p = column([p.top_p for p in params])
        self._top_k = column([float(p.top_k) if p.top_k > 0 else float("inf") for p in params])
        self._min_p = column([p.min_p for p in params])
        self._filtered = torch.tensor(
            [not p.greedy and (p.top_p < 1 or p.top_k > 0 or p.min_p > 0) for p in params], dtype=torch.bool, device=device
        )
        self._look()

    def _look(self) -> None:
        self._all_greedy = bool(self._greedy.all())
        self._any_greedy = bool(self._greedy.any())
        self._scaled = bool((self._temperature != 1).any())
        self._filtered_rows = self._filtered.nonzero().squeeze(1)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order."""
        for name in ("_temperature", "_greedy", "_top_p", "_top_k", "_min_p", "_filtered"):
            setattr(self, name, getattr(self, name)[rows])
        self._look()

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample by inverting the cumulative distribution.

        Args:
            logits: (rows, vocabulary), any float dtype.
            uniforms: float64 (rows,) in [0, 1).

        Returns:
            Token ids, int64 (rows,), and their log-probabilities, float32 (rows,), under the softmax at the row's
            temperature and before top-k, top-p and min-p, which is what SGLang reports.
        """
        scores = logits.float()
        if self._scaled:
            scores = scores / self._temperature[:, None]
        highest = scores.max(dim=-1)
        tokens = highest.indices
        weights = torch.exp(scores - highest.values[:, None])
        if self._all_greedy:
            total = weights.sum(-1)
        else:
            sampled, total = _invert(weights, uniforms)
            if len(self._filtered_rows):
                sampled[self._filtered_rows] = self._sample_filtered(weights, total, uniforms)
            tokens = torch.where(self._greedy, tokens, sampled) if self._any_greedy else sampled
        chosen = scores.gather(1, tokens[:, None]).squeeze(1)
        return tokens, chosen - highest.values - total.log()

    def _sample_filtered(self, weights: torch.Tensor, total: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        rows = self._filtered_rows
        probs, order = (weights[rows] / total[rows, None]).sort(dim=-1, descending=True)
        before = probs.cumsum(-1) - probs
        rank = torch.arange(probs.shape[-1], device=probs.device)
        drop = (rank >= self._top_k[rows, None]) | (before > self._top_p[rows, None])
        drop |= probs < probs[:, :1] * self._min_p[rows, None]
        chosen, _ = _invert(probs.masked_fill(drop, 0.0), uniforms[rows])
        return order.gather(1, chosen[:, None]).squeeze(1)


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index where the cumulative weight passes ``uniforms`` times the total, (rows,); and the total, (rows,).

    In two steps, blocks and then entries of one block: a cumulative sum over the whole vocabulary would cost as much as
    all the rest of the sampling and lose precision.
    """
    rows, width = weights.shape
    padded = weights if width % _BLOCK == 0 else torch.nn.functional.pad(weights, (0, -width % _BLOCK))
    padded = padded.view(rows, -1, _BLOCK)
    blocks = padded.sum(-1).double().cumsum(-1)
    total = blocks[:, -1]
    # Just below the total, so that rounding never runs past the last entry that has weight.
    goal = (uniforms * total).clamp(max=total * (1 - 1e-7))[:, None]
    block = torch.searchsorted(blocks, goal, right=True).clamp(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = padded[torch.arange(rows, device=weights.device), block.squeeze(1)]
    within = inside.double().cumsum(-1)
    # The block's own end is the float64 sum of its entries, which differs from the float32 sum by rounding alone.
    rest = torch.minimum(goal - before, within[:, -1:] * (1 - 1e-7))
    entry = torch.searchsorted(within, rest, right=True).clamp(max=_BLOCK - 1)
    # Weights that are not numbers compare with nothing: the index must stay inside all the same.
    return (block * _BLOCK + entry).squeeze(1).clamp(max=width - 1), total.float()
