"""Prompts with their answers: settings that stand in a recipe, and what they open to.

A dataset is a frozen dataclass of plain settings that derives from :class:`Dataset`; :meth:`Dataset.open` gives its items.
One's own dataset is made the same way as the ones here and in :mod:`hpcrl.data.records` and
:mod:`hpcrl.data.procedural`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

# What chat templates take: {"role": …, "content": …} each.
Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One prompt.

    Attributes:
        prompt: messages for the model's chat template, or plain text that is encoded as it stands.
        answer: what the reward compares with.
        metadata: JSON-like, for the reward.
        source: where the item stands, for errors: file and line, or task and number.
    """

    prompt: Messages | str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def record(self) -> dict[str, Any]:
        """What a reward function gets as its item: ``question``, ``answer``, ``metadata``, ``source``."""
        question = self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]
        return {"question": question, "answer": self.answer, "metadata": dict(self.metadata), "source": self.source}

    def record_json(self) -> str:
        """:meth:`record` as JSON; values that JSON lacks become strings."""
        return json.dumps(self.record(), default=str)


class Prompts(Protocol):
    """An opened dataset: items by number, any of them at any time, the same each time."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Item: ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Base of every dataset's settings.

    Attributes:
        system: system message put before each prompt; empty for none.
    """

    system: str = ""

    def open(self) -> Prompts:
        """The items.

        Raises:
            CheckFailed: what is wrong with the data, every reason with its file and line.
        """
        raise TypeError(f"{type(self).__qualname__} must define open()")

    def fingerprint(self) -> dict[str, str]:
        """What the items are made from, by name, so that a run goes on with the same ones: the settings.

        A dataset that reads files names what they hold instead of where they lie.

        Raises:
            OSError: a file cannot be read.
        """
        return {"kind": type(self).__qualname__, **{one.name: repr(getattr(self, one.name)) for one in fields(self)}}

    @property
    def procedural(self) -> bool:
        """Whether items are generated, so that a check looks at a sample of them instead of at all."""
        return False

    def chat(self, *messages: Mapping[str, str]) -> Messages:
        """The messages, after the system message if there is one and they bring none of their own."""
        own = bool(messages) and messages[0]["role"] == "system"
        return messages if own or not self.system else ({"role": "system", "content": self.system}, *messages)
