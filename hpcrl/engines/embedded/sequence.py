"""One sample on its way through the engine, and the requests that samples belong to."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrl.engines.embedded.sampling_params import SamplingParams


@dataclass
class Span:
    """Output tokens ``start`` to ``end`` (exclusive) were made by one version of the weights."""

    version: str
    start: int
    end: int


@dataclass
class Sequence:
    """A prompt, its parameters and what was made of it so far.

    Attributes:
        limit: output tokens at most, once the context is taken into account.
        uniforms: float64 (limit,): the random number of each output token, drawn when the request came in, so that
            nothing else that runs can change them.
        logprob_start: first prompt position to score, or -1.
        prompt_logprobs: for each scored position its log-probability; None for the first, which nothing predicts.
        cached_tokens: prompt tokens that were taken from another sample's prefill.
    """

    rid: str
    prompt: list[int]
    params: SamplingParams
    limit: int
    uniforms: np.ndarray
    return_logprob: bool = False
    logprob_start: int = -1
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    spans: list[Span] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    cached_tokens: int = 0
    retractions: int = 0

    @property
    def context(self) -> list[int]:
        """Everything the model must have seen before the next token."""
        return self.prompt + self.tokens

    def extend(self, tokens: list[int], logprobs: list[float], version: str) -> None:
        """Append tokens that one version made."""
        start = len(self.tokens)
        self.tokens += tokens
        self.logprobs += logprobs
        if not tokens:
            return
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = len(self.tokens)
        else:
            self.spans.append(Span(version, start, len(self.tokens)))

    def finish_if_done(self, eos: frozenset[int]) -> bool:
        """Set the finish reason if the last token or the length ends the sample; returns whether it did."""
        last = self.tokens[-1] if self.tokens else None
        if last is not None and not self.params.ignore_eos and (last in eos or last in self.params.stop_token_ids):
            self.finish_reason = {"type": "stop", "matched": last}
        elif len(self.tokens) >= self.limit:
            self.finish_reason = {"type": "length", "length": self.limit}
        return self.finish_reason is not None

    def abort(self, message: str) -> None:
        """End the sample as it stands."""
        self.finish_reason = {"type": "abort", "message": message}


@dataclass
class Group:
    """The samples of one request of a client; they are answered together.

    Attributes:
        seeded: some sample brought its own seed, so its numbers must not depend on what else runs.
    """

    sequences: list[Sequence]
    future: Future[list[Sequence]]
    seeded: bool
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None

    def resolve_if_done(self) -> bool:
        """Answer the client once every sample has ended; returns whether it was answered."""
        if any(sequence.finish_reason is None for sequence in self.sequences):
            return False
        if not self.future.done():
            self.future.set_result(self.sequences)
        return True
