"""Prompts to tokens and back, by a model directory's ``tokenizer.json`` and chat template alone.

transformers takes seconds to import, in a process that has no other use for it. Tests hold both to the same ids and texts; what
lacks a ``tokenizer.json`` is :class:`hpcrl.data.tokenizer.PromptEncoder`'s to read.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.data.chat_template import read_template, special_tokens
from hpcrl.data.dataset import Item

if TYPE_CHECKING:
    # The checks before a start do without it.
    import numpy as np
    from tokenizers import Tokenizer

_CHUNK = 4096
_EVEN_FOR_BPE = "_for_bpe_even_though_it_will_corrupt_output"
# None of them makes plain ASCII text longer.
_SHORT = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Strip"}


class QuickTokens:
    """Encodes prompts, counts their tokens, and decodes responses.

    Raises:
        OSError, ValueError: a file cannot be read, or is no tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._settings = settings = _settings(path)
        self._tokenizer = _tokenizer(path / "tokenizer.json", settings)
        self._template = read_template(path, settings)

    @classmethod
    def reads(cls, path: Path) -> bool:
        """Whether the directory has what is needed; otherwise it takes transformers to make a tokenizer of its files."""
        return (path / "tokenizer.json").is_file()

    @classmethod
    def open(cls, path: Path) -> QuickTokens:
        """The one of a directory; roles of one recipe share it while its files stay as they are."""
        files = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        return _opened(path, tuple((path / name).stat().st_mtime_ns if (path / name).exists() else 0 for name in files))

    @property
    def tidies(self) -> bool:
        """Whether transformers takes spaces before punctuation out of decoded text, which is not done here: not for BPE."""
        wanted, always = (f"clean_up_tokenization_spaces{more}" for more in ("", _EVEN_FOR_BPE))
        bpe = type(self._tokenizer.model).__name__ == "BPE"
        return bool(self._settings.get(wanted) and (self._settings.get(always) or not bpe))

    @cached_property
    def highest_id(self) -> int:
        """The highest token id; -1 if there are no tokens."""
        size, token_of = self._tokenizer.get_vocab_size(), self._tokenizer.id_to_token
        # As many tokens as there are ids from 0 on: no other id is left. A dictionary of all of them takes twice as long.
        if size and all(token_of(number) is not None for number in range(size)):
            return size - 1
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def text(self, item: Item) -> str:
        """The prompt as it is encoded: an item's plain text, or its messages in the chat template.

        Raises:
            ValueError: the item holds messages and the model has no chat template, or the template refused them.
        """
        if isinstance(item.prompt, str):
            return item.prompt
        if self._template is None:
            raise ValueError(f"the tokenizer in {self._path} has no chat template; give prompts as plain text")
        try:
            return self._template.render(item.prompt)
        except ValueError as error:
            raise ValueError(f"the chat template in {self._path} refused the messages: {error}") from error

    def encode(self, item: Item) -> np.ndarray:
        """Prompt ids of an item, int32 (tokens,).

        Raises:
            ValueError: as :meth:`text`.
        """
        import numpy as np

        plain = isinstance(item.prompt, str)
        return np.array(self._tokenizer.encode(self.text(item), add_special_tokens=plain).ids, dtype=np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of response ids without special tokens."""
        import numpy as np

        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    def lengths(self, items: Iterable[Item], most: int | None) -> Iterator[tuple[Item, int | None]]:
        """Each item with its tokens; with None where they can be seen to be 1 to ``most`` without counting them.

        Raises:
            ValueError: as :meth:`text`, with the item's source.
        """
        source = iter(items)
        while chunk := list(islice(source, _CHUNK)):
            texts: list[str] = []
            refused: ValueError | None = None
            for item in chunk:
                try:
                    texts.append(self.text(item))
                except ValueError as error:
                    refused = ValueError(f"{item.source}: {error}")
                    break
            yield from zip(chunk, self._counts(chunk, texts, most), strict=False)
            if refused is not None:
                raise refused

    def _counts(self, items: Sequence[Item], texts: Sequence[str], most: int | None) -> list[int | None]:
        counts: list[int | None] = [None] * len(texts)
        for plain in (False, True):
            rows = [
                row
                for row, text in enumerate(texts)
                if isinstance(items[row].prompt, str) == plain and (most is None or not self._surely_fits(text, most))
            ]
            encoded = self._tokenizer.encode_batch_fast([texts[row] for row in rows], add_special_tokens=plain)
            for row, encoding in zip(rows, encoded, strict=True):
                counts[row] = len(encoding)
        return counts

    def _surely_fits(self, text: str, most: int) -> bool:
        # A token stands for a character at least, and few prompts come near the limit.
        return len(text) + self._added <= most and text.isascii() and not self._visible.isdisjoint(text)

    @cached_property
    def _added(self) -> float:
        """Tokens beyond one for each character, at most; infinite where ASCII text may become longer by itself."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        if not _kinds(self._tokenizer.normalizer) <= _SHORT or any(len(token.content) < 2 for token in added):
            return float("inf")
        # Where a space is put before the text, one goes before what follows an added token too, which takes two characters.
        return 1 + self._tokenizer.num_special_tokens_to_add(is_pair=False)

    @cached_property
    def _visible(self) -> frozenset[str]:
        """Characters that no tokenization leaves out."""
        printed = string.ascii_letters + string.digits + string.punctuation
        return frozenset(c for c in printed if len(self._tokenizer.encode(c, add_special_tokens=False)))


@lru_cache(maxsize=1)
def _opened(path: Path, changed: tuple[int, ...]) -> QuickTokens:
    return QuickTokens(path)


def _settings(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} holds no JSON object")
    return value


def _tokenizer(file: Path, settings: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    data = file.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from error
    # As transformers does: tokens that only the settings name come after the others.
    try:
        listed = (settings.get("added_tokens_decoder") or {}).items()
        added = [AddedToken(**token) for _, token in sorted(listed, key=lambda entry: int(entry[0]))]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"added_tokens_decoder in tokenizer_config.json: {error}") from error
    tokenizer.add_tokens([token for token in added if tokenizer.token_to_id(token.content) is None])
    tokenizer.add_special_tokens([text for text in special_tokens(settings).values() if tokenizer.token_to_id(text) is None])
    return tokenizer


def _kinds(normalizer: Any) -> set[str]:
    if normalizer is None:
        return set()
    return _kinds_in(json.loads(normalizer.__getstate__()))


def _kinds_in(state: dict[str, Any]) -> set[str]:
    if state["type"] == "Sequence":
        return {kind for part in state["normalizers"] for kind in _kinds_in(part)}
    return {str(state["type"])}
