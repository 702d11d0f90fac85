"""Inner attention of packed rows: with an explicit mask, or over each sequence by itself.

Import only after :func:`hpcrl.engines.titan.compat.enable`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torchtitan.protocols.module import Module

from hpcrl.engines.titan.packing import Sequences, sees
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.run.errors import CheckFailed

# On a CPU torch's fused attention is 5 times slower forward and backward than plain matrix products for short rows, but
# plain ones keep rows x heads x length^2 probabilities for the backward pass.
_DENSE_LIMIT = 1 << 25
# What flash attention has a backward pass for.
_FLASH_HEAD_DIMS = range(8, 257, 8)
# (left, right): all keys before, none after.
_CAUSAL = (-1, 0)


class PackedAttention(Module):  # type: ignore[misc]
    """Grouped-query attention softmax(Q K^T / sqrt(H) + mask) V."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        """No settings: mask or sequences come with each call."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._flash = _flash()

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: torch.Tensor | Sequences,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attention output, (rows, length, heads, head_dim).

        Args:
            q_BLNH: queries (rows, length, heads, head_dim); keys and values may have fewer heads, that divide theirs.
            attention_masks: (rows, 1, length, length), added to the scores, of the queries' dtype: 0 or -inf. Or the
                sequences of the only row, their arrays as tensors.
            scale: 1 / sqrt(head_dim) if None.
        """
        rows, length, heads, width = q_BLNH.shape
        scale = width**-0.5 if scale is None else scale
        if isinstance(attention_masks, Sequences):
            return self._by_sequence(q_BLNH[0], k_BLNH[0], v_BLNH[0], attention_masks, scale)[None]
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

    def _by_sequence(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: Sequences, scale: float
    ) -> torch.Tensor:
        if sequences.keys is not None:
            k, v = k.index_select(0, sequences.keys), v.index_select(0, sequences.keys)
        if q.device.type == "cpu":
            return _one_by_one(q, k, v, sequences, scale)
        assert self._flash is not None
        usual = q.shape[-1] ** -0.5
        if scale != usual:
            q = q * (scale / usual)
        starts = (sequences.query_starts, sequences.key_starts)
        out: torch.Tensor = self._flash(q, k, v, *starts, sequences.most_queries, sequences.most_keys)
        return out


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


def _one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: Sequences, scale: float) -> torch.Tensor:
    # Flash attention of many sequences needs a GPU.
    queries, keys = (starts.diff().tolist() for starts in (sequences.query_starts, sequences.key_starts))
    parts: Any = zip(torch.split(q, queries), torch.split(k, keys), torch.split(v, keys), strict=True)
    outs = [
        functional.scaled_dot_product_attention(
            one_q.transpose(0, 1)[None],
            one_k.transpose(0, 1)[None],
            one_v.transpose(0, 1)[None],
            attn_mask=_last_sees_all(len(one_q), len(one_k), q.device),
            scale=scale,
            enable_gqa=k.shape[1] != q.shape[1],
        )[0].transpose(0, 1)
        for one_q, one_k, one_v in parts
    ]
    return torch.cat(outs)


def _last_sees_all(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


def _flash() -> Callable[..., Any] | None:
    """Causal flash attention of sequences, with fewer heads of keys than of queries; None where torch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    # How it is told changed from version to version; fewer heads were once taken without a word.
    known = inspect.signature(varlen_attn).parameters
    told: dict[str, Any] = {"window_size": _CAUSAL} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        told["enable_gqa"] = True
    return partial(varlen_attn, **told)


def goes_by_sequence(settings: TrainerSettings, device: torch.device, head_dim: int) -> bool:
    """Whether a trainer's attention takes sequences, rather than a mask.

    Raises:
        CheckFailed: it is set to, and cannot.
    """
    problem = _flash_problem(settings, device, head_dim)
    if settings.attention == "varlen" and problem:
        raise CheckFailed([f"attention 'varlen' cannot be had: {problem}; set it to 'auto'"])
    # On a CPU sequences go one after the other, which rows of many short ones are too slow for.
    return settings.attention == "varlen" or (settings.attention == "auto" and device.type != "cpu" and not problem)


def _flash_problem(settings: TrainerSettings, device: torch.device, head_dim: int) -> str:
    if device.type == "cpu":
        return "on a CPU it cannot be compiled" if settings.compile else ""
    if settings.compute_dtype != "bfloat16":
        return f"it computes in bfloat16, not in {settings.compute_dtype}"
    if head_dim not in _FLASH_HEAD_DIMS:
        return f"it takes heads of multiples of 8 up to 256, not of {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is older than Ampere"
    return "" if _flash() is not None else f"torch {torch.__version__} lacks it"


def additive_mask(segment: torch.Tensor, parent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(rows, 1, length, length) to add to the scores: 0 where a query sees a key, else -inf.

    Made where the segments are: it has length times as many entries as they have, too many to carry to a GPU.

    Args:
        segment, parent: int32 (rows, length), of a :class:`~hpcrl.engines.titan.packing.MicroBatch`.
    """
    length = segment.shape[1]
    seen = sees(segment, parent, torch.ones(length, length, dtype=torch.bool, device=segment.device).tril_())
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf")).unsqueeze(1)
