"""Text of token ids, by the tokenizer that a run left or began with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.cli.ckpt_look import trainer_of
from hpcrl.data.models import resolve_model
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    import numpy as np

_FILE = "tokenizer.json"


class Vocabulary:
    """See :class:`hpcrl.cli.trajectories_text.Words`."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def text(self, ids: np.ndarray) -> str | None:
        """Of them together, special tokens included; None where no tokenizer is to be had."""
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def pieces(self, ids: np.ndarray) -> list[str] | None:
        """Of each by itself."""
        if self._tokenizer is None:
            return None
        return [str(self._tokenizer.decode([token], skip_special_tokens=False)) for token in ids.tolist()]

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        for path in self._places():
            try:
                text = path.read_text(encoding="utf-8")
                json.loads(text)
            except (OSError, ValueError):
                continue
            return Tokenizer.from_str(text)
        return None

    def _places(self) -> Iterator[Path]:
        yield from sorted(self._run.weights.glob(f"v*/{_FILE}"), reverse=True)
        if isinstance(model := trainer_of(self._run).get("model"), str):
            with suppress(CheckFailed):
                yield resolve_model(model) / _FILE
