"""Prompts from files: JSON lines, or Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.data.dataset import Dataset, Item, Prompts
from hpcrl.data.files import data_files, records
from hpcrl.run.digest import fingerprint
from hpcrl.run.errors import CheckFailed

_MOST_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class Records(Dataset):
    """One object a line, or a row, in one file or several, one after the other.

    Attributes:
        paths: the files; a folder stands for all in it, and ``owner/name`` for a Hugging Face dataset.
        prompt_field: holds the user's text, or a list of messages with ``role`` and ``content``. A field in a field is
            ``outer.inner``.
        answer_field: holds the answer, a text or a number.
        answer_after: keep only what follows the last occurrence of this mark in the answer (``####`` in gsm8k).
        prompt_keep: regular expression; where it is found in the user's text, only its first group stays.
        prompt_end: put after the user's text.
        distinct: of items with the same prompt, only the first.
        raw: the prompt is plain text that no chat template goes around.
    """

    paths: tuple[str, ...]
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    answer_after: str = ""
    prompt_keep: str = ""
    prompt_end: str = ""
    distinct: bool = False
    raw: bool = False

    def open(self) -> Prompts:
        """Read every record.

        Raises:
            CheckFailed: no file, a record that is not an object or lacks a field (file, line or row, fields found), no items.
        """
        items: list[Item] = []
        seen: set[Any] = set()
        problems: list[str] = []
        if not self.paths:
            problems.append("Records names no file")
        try:
            re.compile(self.prompt_keep)
        except re.error as error:
            raise CheckFailed([f"prompt_keep {self.prompt_keep!r} is no regular expression: {error}"]) from error
        for name in self.paths:
            count = 0
            try:
                for path in data_files(name):
                    for where, record in records(path):
                        count += 1
                        self._add(items, seen, record, where, problems)
                        if len(problems) >= _MOST_PROBLEMS:
                            raise CheckFailed(problems)
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"dataset {name} cannot be read: {error}")
            else:
                if not count and not problems:
                    problems.append(f"dataset {name} is empty")
        if problems:
            raise CheckFailed(problems)
        return items

    def fingerprint(self) -> dict[str, str]:
        """The settings and the files' checksums."""
        paths = [path for name in self.paths for path in data_files(name)]
        files = {f"file {number}": fingerprint(path) for number, path in enumerate(paths, start=1)}
        return {name: value for name, value in super().fingerprint().items() if name != "paths"} | files

    def _add(self, items: list[Item], seen: set[Any], record: Any, where: str, problems: list[str]) -> None:
        try:
            if isinstance(record, ValueError):
                raise record
            item = self._item(record, where)
        except ValueError as error:
            problems.append(f"{where} {error}")
            return
        if self.distinct:
            prompt = item.prompt
            same: Any = prompt if isinstance(prompt, str) else tuple((m["role"], m["content"]) for m in prompt)
            if same in seen:
                return
            seen.add(same)
        items.append(item)

    def _item(self, record: Any, where: str) -> Item:
        if not isinstance(record, dict):
            raise ValueError(f"holds a {type(record).__name__} instead of an object")
        prompt, answer = (_field(record, name) for name in (self.prompt_field, self.answer_field))
        taken = {name.partition(".")[0] for name in (self.prompt_field, self.answer_field)}
        rest = {key: value for key, value in record.items() if key not in taken}
        return Item(prompt=self._prompt(prompt), answer=self._answer(answer), metadata=rest, source=where)

    def _prompt(self, value: Any) -> tuple[Mapping[str, str], ...] | str:
        if isinstance(value, str) and value.strip():
            text = self._text(value)
            return text if self.raw else self.chat({"role": "user", "content": text})
        if isinstance(value, list) and value and all(_is_message(message) for message in value) and not self.raw:
            return self.chat(*self._messages(value))
        raise ValueError(f"has a {self.prompt_field!r} that is neither a text nor a list of messages (role, content)")

    def _messages(self, messages: list[dict[str, Any]]) -> Iterator[Mapping[str, str]]:
        last = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=-1)
        for number, message in enumerate(messages):
            text = message["content"]
            yield {"role": message["role"], "content": self._text(text) if number == last else text}

    def _text(self, text: str) -> str:
        if self.prompt_keep and (found := re.search(self.prompt_keep, text, re.DOTALL)):
            text = found[1]
        return text + self.prompt_end

    def _answer(self, value: Any) -> str:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"has a {self.answer_field!r} that is neither a text nor a number")
        answer = str(value)
        if self.answer_after:
            if self.answer_after not in answer:
                raise ValueError(f"has no {self.answer_after!r} in its {self.answer_field!r}")
            answer = answer.rsplit(self.answer_after, 1)[1]
        return answer.strip()


def _field(record: Mapping[str, Any], name: str) -> Any:
    held: Any = record
    for part in name.split("."):
        if not isinstance(held, Mapping) or part not in held:
            have = sorted(held) if isinstance(held, Mapping) else f"a {type(held).__name__} before {part!r}"
            raise ValueError(f"has no field {name!r}; it has {have}")
        held = held[part]
    return held


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
