"""What a Hugging Face ``config.json`` says of a model, checked. Standard library only, so it can run before anything starts.

A field that would change the model's maths is never ignored: it is supported or refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.run.errors import HpcrlError

FAMILIES = ("llama", "qwen2", "qwen3")


class ModelError(HpcrlError):
    """The model folder cannot be trained; names the file and what is wrong."""


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies scaled as by Llama 3."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes and constants of a model.

    Attributes:
        context: the longest sample, at most what the model was made for.
        tied: the head shares the embedding's weights.
        qkv_bias: the projections to queries, keys and values add a bias.
    """

    family: str
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    context: int
    tied: bool
    qkv_bias: bool

    @property
    def pair_cost(self) -> float:
        """Cost of a pair of query and key in attention per cost of a token outside it, counted in multiplications."""
        projections = self.width * self.head_dim * 2 * (self.heads + self.key_heads)
        return 2 * self.heads * self.head_dim / (projections + 3 * self.width * self.inner)


def read_shape(folder: Path, *, context: int | None = None) -> ModelShape:
    """Read and check a model folder's ``config.json``.

    Args:
        context: a shorter context than the model's, or None.

    Raises:
        ModelError: no or broken ``config.json``, unknown family, or a field with a value that is not supported.
    """
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    fields = _Fields(folder / "config.json")
    family = fields.need("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{fields.path}: model_type {family!r} cannot be trained; supported are {list(FAMILIES)}")
    fields.only("hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window", "use_mrope"):
        fields.only(name, False)
    fields.only("attention_dropout", 0)
    fields.only("quantization_config", None)
    longest = int(fields.need("max_position_embeddings"))
    if context is not None and context > longest:
        raise ModelError(f"{fields.path}: a context of {context} was asked for, but the model is made for {longest}")
    theta, scaling = _rope(fields, family)
    heads, width = int(fields.need("num_attention_heads")), int(fields.need("hidden_size"))
    return ModelShape(
        family=family,
        vocabulary=int(fields.need("vocab_size")),
        width=width,
        inner=int(fields.need("intermediate_size")),
        layers=int(fields.need("num_hidden_layers")),
        heads=heads,
        key_heads=int(fields.get("num_key_value_heads", heads)),
        head_dim=int(fields.get("head_dim", width // heads)),
        norm_eps=float(fields.need("rms_norm_eps")),
        rope_theta=theta,
        rope_scaling=scaling,
        context=context or longest,
        tied=bool(fields.get("tie_word_embeddings", False)),
        # Qwen2 always has them, and its configuration no field for it.
        qkv_bias=family == "qwen2",
    )


class _Fields:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fields = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise ModelError(f"model folder {path.parent} has no config.json; give a folder in Hugging Face layout") from error
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error

    def get(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        if self.get(name) is None:
            raise ModelError(f"{self.path} has no field {name!r}")
        return self._fields[name]

    def only(self, name: str, allowed: Any) -> None:
        """Refuse a value that the trainer's model has no counterpart for; an absent field is fine."""
        if self.get(name, allowed) != allowed:
            raise ModelError(f"{self.path}: {name} = {self.get(name)!r} is not supported, only {allowed!r}")


def _rope(fields: _Fields, family: str) -> tuple[float, RopeScaling | None]:
    """Rotary parameters, in the layout of transformers 5 or of earlier ones."""
    rope = {"rope_theta": fields.get("rope_theta"), **fields.get("rope_scaling", {}), **fields.get("rope_parameters", {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope["rope_theta"] is None:
        raise ModelError(f"{fields.path} has neither rope_theta nor rope_parameters.rope_theta")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{fields.path}: partial rotary embeddings are not supported")
    if kind == "default":
        return float(rope["rope_theta"]), None
    if kind != "llama3" or family != "llama":
        raise ModelError(f"{fields.path}: rope type {kind!r} is not supported for {family}")
    try:
        scaling = RopeScaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_context=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"{fields.path}: rope type 'llama3' needs {error.args[0]!r}") from error
    return float(rope["rope_theta"]), scaling
