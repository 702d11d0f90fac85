"""Rows as a trainer has them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from hpcrl.dataplane.interface import Batch, Block


@pytest.fixture
def group() -> Callable[..., Batch]:
    """Makes the samples of a prompt as the queue gives them: their row ids begin at 1000 times the prompt's number."""

    def make(prompt: int, samples: int = 3) -> Batch:
        ids = np.arange(samples, dtype=np.int64) + 1000 * prompt
        answers = [np.arange(row + 1, dtype=np.int32) for row in range(samples)]
        columns = {
            "prompt_number": np.full(samples, prompt, np.int64),
            "sample_index": np.arange(samples, dtype=np.int32),
            "reward": np.linspace(0, 1, samples, dtype=np.float32),
            "outcome": np.zeros(samples, np.int8),
            "prompt_ids": [np.array([prompt], np.int32)] * samples,
            "response_ids": answers,
            "rollout_logprobs": [np.full(len(ids), -0.5, np.float32) for ids in answers],
            "versions": [np.arange(len(ids), dtype=np.int32) for ids in answers],
            "response": [f"answer {row} to {prompt}" for row in range(samples)],
            "item": [json.dumps({"question": f"question {prompt}", "answer": "42", "metadata": {}, "source": "a:1"})] * samples,
            "finish": ["stop"] * samples,
        }
        return Batch("samples", columns, (Block(ids),))

    return make
