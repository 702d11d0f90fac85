"""Messages to token ids, once, and ids back to text for whoever reads it; nothing is ever encoded twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrl.data.dataset import Item, Messages
from hpcrl.data.quick_tokens import QuickTokens


class Encoder(Protocol):
    """Prompts to ids, and ids to text."""

    def encode(self, item: Item) -> np.ndarray:
        """Prompt ids of an item, int32 (tokens,); ``ValueError`` if there is no chat template for messages, or it refuses."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of response ids without special tokens."""


def open_encoder(path: Path) -> Encoder:
    """The tokenizer of a model directory, without transformers where that will do.

    Raises:
        OSError, ValueError: there is none or it cannot be read.
    """
    return QuickTokens.open(path) if QuickTokens.reads(path) else PromptEncoder(path)


def load_tokenizer(path: Path) -> Any:
    """The Hugging Face tokenizer of a model directory, from local files alone.

    Raises:
        OSError, ValueError: there is none or it cannot be read.
    """
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True)


class PromptEncoder:
    """An :class:`Encoder` by transformers, which takes any kind of tokenizer files.

    Raises:
        OSError, ValueError: the tokenizer cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer = load_tokenizer(path)

    @property
    def has_template(self) -> bool:
        """Whether messages can be encoded; plain text always can."""
        return bool(self._tokenizer.chat_template)

    def encode(self, item: Item) -> np.ndarray:
        """Prompt ids of an item, int32 (tokens,).

        Raises:
            ValueError: the item holds messages and the model has no chat template, or the template refused them.
        """
        if isinstance(item.prompt, str):
            ids = self._tokenizer(item.prompt)["input_ids"]
        elif not self.has_template:
            raise ValueError(f"the tokenizer in {self._path} has no chat template; give prompts as plain text")
        else:
            ids = self._template(item.prompt)
        return np.asarray(ids, dtype=np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of response ids without special tokens."""
        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

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
