"""From a client's request to samples, with everything checked first."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcrl.engines.embedded.errors import RequestError
from hpcrl.engines.embedded.sampler import draw_uniforms
from hpcrl.engines.embedded.sampling_params import SamplingParams
from hpcrl.engines.embedded.sequence import Sequence


class Intake:
    """Checks requests against the model.

    Args:
        max_context: tokens of prompt and completion together.
        vocab_size: token ids must be below.
        seed: for samples that bring no seed.
    """

    def __init__(self, max_context: int, vocab_size: int, seed: int) -> None:
        self._max_context, self._vocab_size = max_context, vocab_size
        self._seeds = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def sequences(
        self,
        prompts: list[list[int]],
        sampling: list[Mapping[str, Any]],
        rids: list[str] | None,
        return_logprob: bool,
        logprob_start_len: int,
    ) -> tuple[list[Sequence], bool]:
        """The samples asked for, those of a prompt side by side, and whether any brings its own seed.

        Raises:
            RequestError: nothing of the request can be served.
        """
        if not prompts:
            raise RequestError("input_ids cannot be empty.")
        parsed = [SamplingParams.parse(given) for given in sampling]
        if len(parsed) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(parsed)} sampling_params")
        total = sum(params.n for params in parsed)
        names = rids if rids is not None else [uuid.uuid4().hex for _ in range(total)]
        if len(names) != total:
            raise RequestError("The specified rids length mismatch with the batch_size for batch processing.")
        sequences: list[Sequence] = []
        for prompt, params in zip(prompts, parsed, strict=True):
            limit = self._limit(prompt, params)
            start = logprob_start_len if return_logprob else -1
            if start > len(prompt):
                raise RequestError(
                    f"logprob_start_len={start} is higher than the number of input tokens {len(prompt)}. "
                    "Please use a smaller logprob_start_len."
                )
            for sample in range(params.n):
                uniforms = draw_uniforms(self._seed(params), sample, limit)
                sequences.append(
                    Sequence(
                        names[len(sequences)],
                        prompt,
                        params,
                        limit,
                        uniforms,
                        return_logprob,
                        start if start < len(prompt) else -1,
                    )
                )
        return sequences, any(params.sampling_seed is not None for params in parsed)

    def _seed(self, params: SamplingParams) -> int:
        if params.sampling_seed is not None:
            return params.sampling_seed
        with self._lock:
            return int(self._seeds.integers(1 << 63))

    def _limit(self, prompt: list[int], params: SamplingParams) -> int:
        length, context = len(prompt), self._max_context
        if not length:
            raise RequestError("input_ids cannot be empty.")
        if length >= context:
            raise RequestError(f"The input ({length} tokens) is longer than the model's context length ({context} tokens).")
        if max(prompt) >= self._vocab_size or min(prompt) < 0:
            raise RequestError(f"input_ids must be in [0, {self._vocab_size - 1}], got {min(prompt)} to {max(prompt)}.")
        if params.max_new_tokens is None:
            return context - length
        if length + params.max_new_tokens > context:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens: {length} tokens of "
                f"input and {params.max_new_tokens} tokens for the completion."
            )
        return params.max_new_tokens
