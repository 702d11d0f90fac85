"""A torchtitan model configuration from the shape of a model.

Import only after :func:`hpcrl.engines.titan.compat.enable`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchtitan.models import llama3, qwen3
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, RMSNorm, RoPE
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.qwen3.model import Qwen3TransformerBlock

from hpcrl.engines.titan.attention import PackedAttention
from hpcrl.engines.titan.head import LogProbHead
from hpcrl.engines.titan.shape import ModelShape


@dataclass(frozen=True)
class ModelSpec:
    """A model that torchtitan can build.

    Attributes:
        config: torchtitan's model configuration.
        parallelize: torchtitan's function that shards the built model.
        adapter: torchtitan's converter between its names and layouts and those of Hugging Face.
    """

    config: Any
    parallelize: Callable[..., Any]
    adapter: Any


class Qwen2StateDictAdapter(qwen3.Qwen3StateDictAdapter):  # type: ignore[misc]
    """Qwen3's names and layouts, and the biases of queries, keys and values that Qwen2 has besides."""

    def __init__(self, model_config: Any, hf_assets_path: str | None) -> None:
        super().__init__(model_config, hf_assets_path)
        for letter in "qkv":
            theirs = f"model.layers.{{}}.self_attn.{letter}_proj.bias"
            self.from_hf_map[theirs] = f"layers.{{}}.attention.qkv_linear.w{letter}.bias"


@dataclass(frozen=True)
class _Family:
    model: Any
    block: Any
    adapter: Any
    parallelize: Callable[..., Any]
    rope: type[RoPE]
    normed_queries: bool


_FAMILIES = {
    "llama": _Family(
        llama3.Llama3Model,
        Llama3TransformerBlock,
        llama3.Llama3StateDictAdapter,
        llama3.parallelize_llama,
        ComplexRoPE,
        False,
    ),
    # Qwen3's layers without the norms of queries and keys.
    "qwen2": _Family(
        qwen3.Qwen3Model, Qwen3TransformerBlock, Qwen2StateDictAdapter, qwen3.parallelize_qwen3, CosSinRoPE, False
    ),
    "qwen3": _Family(
        qwen3.Qwen3Model, Qwen3TransformerBlock, qwen3.Qwen3StateDictAdapter, qwen3.parallelize_qwen3, CosSinRoPE, True
    ),
}


def model_spec(shape: ModelShape, *, logits_chunk: int, temperature: float) -> ModelSpec:
    """The torchtitan model of that shape, with the head of :mod:`hpcrl.engines.titan.head`."""
    family = _FAMILIES[shape.family]
    config = family.model.Config(
        dim=shape.width,
        vocab_size=shape.vocabulary,
        enable_weight_tying=shape.tied,
        norm=_norm(shape, shape.width),
        tok_embeddings=Embedding.Config(num_embeddings=shape.vocabulary, embedding_dim=shape.width, param_init=_INIT),
        lm_head=LogProbHead.Config(
            in_features=shape.width,
            out_features=shape.vocabulary,
            param_init=_INIT,
            chunk=logits_chunk,
            temperature=temperature,
        ),
        layers=[_block(shape, family) for _ in range(shape.layers)],
    )
    return ModelSpec(config, family.parallelize, family.adapter(config, None))


def _read_from_files(_: Any) -> None:
    """Takes the place of a random initialisation."""


_INIT = {"weight": _read_from_files, "bias": _read_from_files}


def _norm(shape: ModelShape, size: int) -> Any:
    return RMSNorm.Config(normalized_shape=size, eps=shape.norm_eps, param_init=_INIT)


def _block(shape: ModelShape, family: _Family) -> Any:
    attention = make_gqa_config(
        dim=shape.width,
        n_heads=shape.heads,
        n_kv_heads=shape.key_heads,
        head_dim=shape.head_dim,
        wqkv_param_init=_INIT,
        wo_param_init=_INIT,
        inner_attention=PackedAttention.Config(),
        rope=_rope(shape, family),
        fuse_qkv=True,
        qk_norm=_norm(shape, shape.head_dim) if family.normed_queries else None,
    )
    if shape.qkv_bias:
        projection = replace(attention.qkv_linear.wqkv, bias=True, param_init=_INIT)
        attention = replace(attention, qkv_linear=replace(attention.qkv_linear, wqkv=projection))
    ffn = make_ffn_config(dim=shape.width, hidden_dim=shape.inner, w1_param_init=_INIT, w2w3_param_init=_INIT)
    norms = (_norm(shape, shape.width), _norm(shape, shape.width))
    return family.block.Config(attention_norm=norms[0], ffn_norm=norms[1], attention=attention, feed_forward=ffn)


def _rope(shape: ModelShape, family: _Family) -> Any:
    plain = {"dim": shape.head_dim, "max_seq_len": shape.context, "theta": shape.rope_theta}
    if shape.rope_scaling is None:
        return family.rope.Config(**plain)
    return family.rope.Config(
        **plain,
        scaling="llama",
        scaling_factor=shape.rope_scaling.factor,
        low_freq_factor=shape.rope_scaling.low_freq_factor,
        high_freq_factor=shape.rope_scaling.high_freq_factor,
        original_max_position_embeddings=shape.rope_scaling.original_context,
    )
