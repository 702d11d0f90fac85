"""Messages to token ids, once, and ids back to text for whoever reads it; nothing is ever encoded twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpcrl.data.dataset import Item, Messages
from hpcrl.data.quick_tokens import QuickTokens

if TYPE_CHECKING:
    # The checks before a start do without it.
    import numpy as np


class Encoder(Protocol):
    """Prompts to ids, and ids to text."""

    @property
    def highest_id(self) -> int:
        """The highest token id; -1 if there are no tokens."""

    def lengths(self, items: Iterable[Item], most: int | None) -> Iterator[tuple[Item, int | None]]:
        """Each item with its tokens, or with None where they are surely 1 to ``most``; ``ValueError`` names the item."""

    def encode(self, item: Item) -> np.ndarray:
        """Prompt ids of an item, int32 (tokens,); ``ValueError`` if there is no chat template for messages, or it refuses."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of response ids without special tokens."""


def open_encoder(path: Path) -> Encoder:
    """The tokenizer of a model directory, without transformers where that will do.

    Raises:
        OSError, ValueError: there is none or it cannot be read.
    """
    quick = QuickTokens.open(path) if QuickTokens.reads(path) else None
    return PromptEncoder(path) if quick is None or quick.tidies else quick


class PromptEncoder:
    """An :class:`Encoder` by transformers, which takes any kind of tokenizer files.

    Raises:
        OSError, ValueError: the tokenizer cannot be read.
    """

    def __init__(self, path: Path) -> None:
        from transformers import AutoTokenizer

        self._path = path
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)

    @cached_property
    def highest_id(self) -> int:
        """The highest token id; -1 if there are no tokens."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    @property
    def has_template(self) -> bool:
        """Whether messages can be encoded; plain text always can."""
        return bool(self._tokenizer.chat_template)

    def encode(self, item: Item) -> np.ndarray:
        """Prompt ids of an item, int32 (tokens,).

        Raises:
            ValueError: the item holds messages and the model has no chat template, or the template refused them.
        """
        import numpy as np

        if isinstance(item.prompt, str):
            ids = self._tokenizer(item.prompt)["input_ids"]
        elif not self.has_template:
            raise ValueError(f"the tokenizer in {self._path} has no chat template; give prompts as plain text")
        else:
            ids = self._template(item.prompt)
        return np.asarray(ids, dtype=np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of response ids without special tokens."""
        import numpy as np

        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    def lengths(self, items: Iterable[Item], most: int | None) -> Iterator[tuple[Item, int | None]]:
        """Each item with its tokens, all of them counted.

        Raises:
            ValueError: as :meth:`encode`, with the item's source.
        """
        for item in items:
            try:
                yield item, len(self.encode(item))
            except ValueError as error:
                raise ValueError(f"{item.source}: {error}") from error

    def _template(self, messages: Messages) -> list[int]:
        from jinja2 import TemplateError

        try:
            encoded = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, return_dict=True
            )
        except TemplateError as error:
            raise ValueError(f"the chat template in {self._path} refused the messages: {error}") from error
        ids: list[int] = encoded["input_ids"]
        return ids
