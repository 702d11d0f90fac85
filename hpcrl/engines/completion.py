"""What an engine's client asks for and gets: typed, and free of the server's JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample; the same for all prompts of a call.

    Attributes:
        top_k: -1 is off.
        stop_token_ids: end a completion besides the model's own end tokens.
        ignore_eos: nothing but the length ends a completion.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def to_json(self, seed: int | None) -> dict[str, Any]:
        """SGLang's ``sampling_params``."""
        params: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "ignore_eos": self.ignore_eos,
        }
        if self.stop_token_ids:
            params["stop_token_ids"] = list(self.stop_token_ids)
        if seed is not None:
            params["sampling_seed"] = seed
        return params


@dataclass(frozen=True)
class Completion:
    """One sample.

    Attributes:
        tokens: int32 (tokens,), as sampled, the token that ended it included.
        logprobs: float32 (tokens,), under the softmax at the request's temperature.
        versions: int32 (tokens,), the policy version that made each token.
        exact_versions: False if the server named only one version for the whole sample: if weights changed while it was
            made, earlier tokens are older than ``versions`` says.
        finish_reason: ``abort`` if it was cut short and ``tokens`` is what there was.
        cached_tokens: prompt tokens that the server did not have to compute.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    exact_versions: bool
    finish_reason: FinishReason
    cached_tokens: int = 0

    def ended(self, reason: FinishReason) -> Completion:
        """The same sample with another end."""
        return replace(self, finish_reason=reason)

    def followed_by(self, rest: Completion) -> Completion:
        """This one, cut short, and what was made of it afterwards as one sample."""
        import numpy as np

        return Completion(
            tokens=np.concatenate([self.tokens, rest.tokens]),
            logprobs=np.concatenate([self.logprobs, rest.logprobs]),
            versions=np.concatenate([self.versions, rest.versions]),
            exact_versions=self.exact_versions and rest.exact_versions,
            finish_reason=rest.finish_reason,
            cached_tokens=self.cached_tokens,
        )

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], *, initial_version: int) -> Completion:
        """Read one object of ``/generate``.

        Raises:
            KeyError, TypeError, ValueError: it is none, or came without log-probabilities.
        """
        import numpy as np

        meta = answer["meta_info"]
        # Token ids and log-probabilities come in pairs, so they are taken from the same list.
        pairs = meta["output_token_logprobs"]
        reason = meta["finish_reason"]["type"]
        if reason not in ("stop", "length", "abort"):
            raise ValueError(f"unknown finish reason {reason!r}")
        logprobs = np.array([np.nan if pair[0] is None else pair[0] for pair in pairs], np.float32)
        return cls(
            tokens=np.array([pair[1] for pair in pairs], np.int32),
            logprobs=logprobs,
            versions=expand_versions(meta, len(pairs), initial_version),
            exact_versions="weight_versions" in meta,
            finish_reason=cast(FinishReason, reason),
            cached_tokens=int(meta.get("cached_tokens") or 0),
        )


def version_number(version: str, initial_version: int) -> int:
    """The number at the end of a version's name; SGLang calls weights that were never updated ``default``.

    Raises:
        ValueError: the name ends in no number.
    """
    if version == "default":
        return initial_version
    match = re.search(r"\d+$", version)
    if match is None:
        raise ValueError(f"weight version {version!r} ends in no number")
    return int(match.group())


def expand_versions(meta: Mapping[str, Any], count: int, initial_version: int) -> np.ndarray:
    """int32 (count,): the version of each token, from spans where the server gives them, else from its one version."""
    import numpy as np

    versions = np.full(count, version_number(meta["weight_version"], initial_version), np.int32)
    for span in meta.get("weight_versions") or ():
        versions[span["start"] : span["end"]] = version_number(span["version"], initial_version)
    return versions


def sample_seed(seed: int, sample: int) -> int:
    """Seed of one sample of a prompt: 31 bits, which every server's seed field holds.

    Each sample needs its own: a server that honours seeds would make all samples of one seed the same.
    """
    digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF


def sample_rids(rid: str, count: int) -> list[str]:
    """Names of the samples of one request, by which a server can abort them."""
    return [f"{rid}_{i}" for i in range(count)]


def generate_body(
    prompts: Sequence[Sequence[int]], sampling: Sampling, samples: int, seeds: Sequence[int] | None, rid: str
) -> dict[str, Any]:
    """Body of ``/generate`` for ``samples`` of each prompt, the samples of a prompt side by side.

    Raises:
        ValueError: no prompts, no samples, not one seed a prompt, or a number that is no token.
    """
    if not prompts or samples < 1:
        raise ValueError(f"nothing to generate: {len(prompts)} prompts, {samples} samples of each")
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
    rows = [_tokens(prompt) for prompt in prompts]
    # Written out instead of asking for n: only so can every sample have a seed, and SGLang runs it faster.
    params: Any = sampling.to_json(None)
    if seeds is not None:
        params = [sampling.to_json(sample_seed(seed, sample)) for seed in seeds for sample in range(samples)]
    return _body([row for row in rows for _ in range(samples)], params, rid)


def finish_body(
    prompts: Sequence[Sequence[int]], begun: Sequence[Completion], sampling: Sampling, seeds: Sequence[int] | None, rid: str
) -> dict[str, Any]:
    """Body of ``/generate`` for what is left of samples that were cut short.

    Args:
        prompts, seeds: one a sample. What a seed gives is another number after each count of tokens, so that none is used
            twice.
    """
    counts = [len(one.tokens) for one in begun]
    params = [
        replace(sampling, max_new_tokens=sampling.max_new_tokens - count).to_json(
            None if seeds is None else sample_seed(seeds[i], count)
        )
        for i, count in enumerate(counts)
    ]
    rows = [_tokens([*prompt, *one.tokens]) for prompt, one in zip(prompts, begun, strict=True)]
    return _body(rows, params, rid)


def score_body(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Body of ``/generate`` that scores tokens.

    Raises:
        ValueError: nothing to score, a sequence of fewer than two tokens, or a number that is no token.
    """
    rows = [_tokens(sequence) for sequence in sequences]
    if not rows or min(map(len, rows)) < 2:
        raise ValueError("nothing to score: there must be sequences, each of two tokens or more")
    params = Sampling(max_new_tokens=0, temperature=0.0).to_json(None)
    return {"input_ids": rows, "sampling_params": params, "return_logprob": True, "logprob_start_len": 0}


def prompt_logprobs(answer: Mapping[str, Any], tokens: Sequence[int]) -> np.ndarray:
    """float32 (tokens - 1,) from the answer to :func:`score_body`.

    Raises:
        KeyError, TypeError, ValueError: it is none, or is of other tokens.
    """
    import numpy as np

    pairs = answer["meta_info"]["input_token_logprobs"]
    if [pair[1] for pair in pairs] != list(tokens):
        raise ValueError(f"{len(pairs)} scores, which are not those of the {len(tokens)} tokens that were sent")
    return np.array([pair[0] for pair in pairs[1:]], np.float32)


def _tokens(given: Sequence[int]) -> list[int]:
    row = [int(token) for token in given]
    # A server of SGLang dies of it.
    if row and min(row) < 0:
        raise ValueError(f"{min(row)} is no token")
    return row


def _body(rows: list[list[int]], params: Any, rid: str) -> dict[str, Any]:
    return {
        "input_ids": rows,
        "sampling_params": params,
        "rid": sample_rids(rid, len(rows)),
        "return_logprob": True,
        "logprob_start_len": -1,
    }
