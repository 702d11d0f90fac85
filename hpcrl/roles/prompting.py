"""The prompt stream of a run: prompt number to prompt ids, and the rows that its answers become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcrl.data.cursor import PromptOrder
from hpcrl.data.dataset import Item, Prompts

if TYPE_CHECKING:
    from hpcrl.data.tokenizer import Encoder
    from hpcrl.dataplane.interface import ColumnData


@dataclass(frozen=True)
class Prompt:
    """One prompt of the stream.

    Attributes:
        ids: int32 (tokens,).
    """

    number: int
    item: Item
    ids: np.ndarray


@dataclass(frozen=True)
class Answer:
    """One sampled response.

    Attributes:
        ids: int32 (tokens,), as the engine made them.
        logprobs: float32 (tokens,), under the policy that made each token.
        versions: int32 (tokens,), the version of that policy.
        finish: why it ended: ``stop``, ``length`` or ``abort``.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish: str


@dataclass(frozen=True)
class PromptSource:
    """Prompts by their number, any of them at any time."""

    prompts: Prompts
    order: PromptOrder
    encoder: Encoder

    def prompt(self, number: int) -> Prompt:
        """The prompt of that number."""
        item = self.prompts[self.order.position(number).index]
        return Prompt(number, item, self.encoder.encode(item))

    def rows(self, prompt: Prompt, answers: Sequence[Answer], *, step: int) -> dict[str, ColumnData]:
        """The columns that one prompt's answers become, a row each, in their order."""
        count = len(answers)
        return {
            "prompt_number": np.full(count, prompt.number, np.int64),
            "sample_index": np.arange(count, dtype=np.int32),
            "step": np.full(count, step, np.int32),
            "prompt_ids": [prompt.ids] * count,
            "response_ids": [answer.ids for answer in answers],
            "rollout_logprobs": [answer.logprobs for answer in answers],
            "versions": [answer.versions for answer in answers],
            "response": [self.encoder.decode(answer.ids) for answer in answers],
            "item": [prompt.item.record_json()] * count,
            "finish": [answer.finish for answer in answers],
        }
