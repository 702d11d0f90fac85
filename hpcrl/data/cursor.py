"""Which prompt comes when: a pure function of the dataset's size and a seed, so that any position can be resumed.

The prompt stream is the epochs one after the other, each a permutation of the dataset. Prompt number k is its position in
that stream, from 0; batch b of P prompts is the numbers ``[bP, min((b+1)P, total))``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Position:
    """A place in the prompt stream: which pass over the dataset, and which of its items."""

    epoch: int
    index: int


@dataclass(frozen=True)
class PromptOrder:
    """The order of the prompts, the same on every platform and process.

    Attributes:
        size: items of the dataset.
        seed: of the permutations, 0 to 2**64 - 1.
        shuffle: permute each epoch anew; otherwise every epoch is in the dataset's own order.
    """

    size: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"an order of {self.size} prompts: the dataset is empty")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed {self.seed} is outside 0 to 2**64 - 1")

    def position(self, prompt_number: int) -> Position:
        """Where a prompt number lies."""
        if prompt_number < 0:
            raise ValueError(f"prompt number {prompt_number} is negative")
        epoch, place = divmod(prompt_number, self.size)
        index = int(_permutation(self.size, self.seed, epoch)[place]) if self.shuffle else place
        return Position(epoch, index)


def batch_of(prompt_number: int, prompts_per_step: int) -> int:
    """Index of the batch, and so the training step, that a prompt belongs to."""
    return prompt_number // prompts_per_step


def batch_numbers(batch: int, prompts_per_step: int, total: int) -> range:
    """Prompt numbers of a batch; the last one holds what is left, no prompt dropped or repeated."""
    return range(min(batch * prompts_per_step, total), min((batch + 1) * prompts_per_step, total))


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    import numpy as np

    # Philox's raw words are fixed by its definition, whereas numpy may change how it shuffles between releases.
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(size)
    return np.argsort(words, kind="stable")
