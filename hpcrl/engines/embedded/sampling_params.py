"""Sampling parameters of a request: SGLang's names, defaults and limits."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.engines.embedded.errors import RequestError

# Below this SGLang decodes greedily.
_GREEDY_BELOW = 1e-6
# Keys that SGLang knows and this engine does not do: the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop": (None, [], ""),
    "stop_regex": (None, [], ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "beam_width": (None, 1),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "stream_interval": (None,),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
    "watermark": (None,),
}
# Keys that change only how text is made of tokens.
_TEXT_ONLY = ("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one completion.

    Attributes:
        max_new_tokens: None means until the context is full; 0 only scores the prompt.
        top_k: -1 is off.
        stop_token_ids: end a completion, besides the model's own end tokens; they stay in the output.
        ignore_eos: neither the model's end tokens nor ``stop_token_ids`` end a completion, as in SGLang.
        sampling_seed: the same seed, weights and request give the same tokens.
    """

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None
    n: int = 1
    skip_special_tokens: bool = True

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Read SGLang's ``sampling_params``; a null value means the default.

        Raises:
            RequestError: an unknown key (names the nearest), one that this engine does not do, or a bad value.
        """
        known = (*cls.__dataclass_fields__, *_NEUTRAL, *_TEXT_ONLY)
        for key, value in given.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RequestError(f"Unexpected keyword argument {key!r} in sampling_params{hint}")
            if key in _NEUTRAL and value not in _NEUTRAL[key]:
                raise RequestError(
                    f"sampling parameter {key!r} is not supported by the embedded engine; use a real SGLang server"
                )
        values = {key: given[key] for key in cls.__dataclass_fields__ if given.get(key) is not None}
        if "max_new_tokens" in given:
            values["max_new_tokens"] = given["max_new_tokens"]
        values["stop_token_ids"] = _stop_ids(values.get("stop_token_ids", ()))
        for key in ("temperature", "top_p", "min_p"):
            if key in values:
                values[key] = _number(key, values[key])
        for key in ("top_k", "n", "max_new_tokens", "sampling_seed"):
            if values.get(key) is not None:
                values[key] = _integer(key, values[key])
        params = cls(**values)
        params._verify()
        return params

    def _verify(self) -> None:
        limits = (
            (
                math.isfinite(self.temperature) and self.temperature >= 0,
                f"temperature must be a non-negative finite number, got {self.temperature}.",
            ),
            (0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}."),
            (0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p}."),
            (self.top_k == -1 or self.top_k >= 1, f"top_k must be -1 (disable) or at least 1, got {self.top_k}."),
            (self.n >= 1, f"n must be at least 1, got {self.n}."),
            (
                self.max_new_tokens is None or self.max_new_tokens >= 0,
                f"max_new_tokens must be at least 0, got {self.max_new_tokens}.",
            ),
            (
                self.sampling_seed is None or -(2**63) <= self.sampling_seed < 2**63,
                f"sampling_seed must be in [-2**63, 2**63 - 1], got {self.sampling_seed}.",
            ),
        )
        for fine, message in limits:
            if not fine:
                raise RequestError(message)


def _stop_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple | set):
        raise RequestError(f"stop_token_ids must be a list of integers, got {value!r}.")
    return tuple(sorted({_integer("stop_token_ids", item) for item in value if item is not None}))


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{key} must be a number, got {value!r}.")
    return float(value)


def _integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{key} must be an integer, got {type(value).__name__}.")
    return value
