"""Inner attention with an explicit mask, for packed rows on a CPU or a GPU.

Import only after :func:`hpcrl.engines.titan.compat.enable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torchtitan.protocols.module import Module

from hpcrl.engines.titan.packing import sees

# On a CPU torch's fused attention is 5 times slower forward and backward than plain matrix products for short rows, but
# plain ones keep rows x heads x length^2 probabilities for the backward pass.
_DENSE_LIMIT = 1 << 25


class MaskedAttention(Module):  # type: ignore[misc]
    """Grouped-query attention softmax(Q K^T / sqrt(H) + mask) V."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        """No settings: the mask comes with each call."""

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: torch.Tensor,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attention output, (rows, length, heads, head_dim).

        Args:
            q_BLNH: queries (rows, length, heads, head_dim); keys and values may have fewer heads, that divide theirs.
            attention_masks: (rows, 1, length, length), added to the scores, of the queries' dtype: 0 or -inf.
            scale: 1 / sqrt(head_dim) if None.
        """
        rows, length, heads, width = q_BLNH.shape
        scale = width**-0.5 if scale is None else scale
        if q_BLNH.device.type == "cpu" and rows * heads * length * length <= _DENSE_LIMIT:
            return _dense(q_BLNH, k_BLNH, v_BLNH, attention_masks, scale)
        return functional.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=attention_masks,
            scale=scale,
            enable_gqa=k_BLNH.shape[2] != heads,
        ).transpose(1, 2)


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    rows, length, heads, width = q.shape
    shared = k.shape[2]
    each = heads // shared
    # The queries that share a key head form one tall matrix.
    tall = (q * scale).view(rows, length, shared, each, width).permute(0, 2, 3, 1, 4).reshape(rows, shared, -1, width)
    scores = (tall @ k.permute(0, 2, 3, 1)).view(rows, shared, each, length, length) + mask.unsqueeze(2)
    mixed = scores.softmax(-1).view(rows, shared, each * length, length) @ v.transpose(1, 2)
    out = mixed.view(rows, shared, each, length, width).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, length, heads, width)


def additive_mask(segment: torch.Tensor, parent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(rows, 1, length, length) to add to the scores: 0 where a query sees a key, else -inf.

    Made where the segments are: it has length times as many entries as they have, too many to carry to a GPU.

    Args:
        segment, parent: int32 (rows, length), of a :class:`~hpcrl.engines.titan.packing.MicroBatch`.
    """
    length = segment.shape[1]
    seen = sees(segment, parent, torch.ones(length, length, dtype=torch.bool, device=segment.device).tril_())
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf")).unsqueeze(1)
