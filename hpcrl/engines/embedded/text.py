"""Text in and out, for clients that want it; a model folder without a tokenizer serves token ids alone."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any

from hpcrl.engines.embedded.errors import RequestError
from hpcrl.engines.embedded.sequence import Sequence


class Text:
    """The model's tokenizer, if it has one."""

    def __init__(self, model_path: Path) -> None:
        self._path = model_path
        self._tokenizer: Any = None
        if (model_path / "tokenizer.json").is_file() or (model_path / "tokenizer_config.json").is_file():
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt.

        Raises:
            RequestError: the model has no tokenizer.
        """
        if self._tokenizer is None:
            raise RequestError(f"text needs a tokenizer and {self._path} has none; send input_ids")
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def decode(self, sequences: Rows[Sequence]) -> list[str]:
        """Text of each completion, without the token that ended it; empty without a tokenizer."""
        if self._tokenizer is None:
            return [""] * len(sequences)
        return [
            self._tokenizer.decode(_shown(sequence), skip_special_tokens=sequence.params.skip_special_tokens)
            for sequence in sequences
        ]


def _shown(sequence: Sequence) -> list[int]:
    stopped = sequence.finish_reason is not None and sequence.finish_reason["type"] == "stop"
    return sequence.tokens[:-1] if stopped else sequence.tokens
