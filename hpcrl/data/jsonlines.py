"""Prompts from JSON-lines files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.data.dataset import Dataset, Item, Prompts
from hpcrl.run.digest import fingerprint
from hpcrl.run.errors import CheckFailed

_MOST_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class JsonLines(Dataset):
    """One object a line, in one file or several, one after the other.

    Attributes:
        paths: the files.
        prompt_field: holds the user's text, or a list of messages with ``role`` and ``content``.
        answer_field: holds the answer, a text or a number.
        answer_after: keep only what follows the last occurrence of this mark in the answer (``####`` in gsm8k).
        raw: the prompt is plain text that no chat template goes around.
    """

    paths: tuple[str, ...]
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    answer_after: str = ""
    raw: bool = False

    def open(self) -> Prompts:
        """Read every line.

        Raises:
            CheckFailed: no file, a line that is not a JSON object or lacks a field (file, line, fields found), no items.
        """
        items: list[Item] = []
        problems: list[str] = []
        if not self.paths:
            problems.append("JsonLines names no file")
        for name in self.paths:
            before = len(items)
            try:
                for item in self._read(Path(name).expanduser(), problems):
                    items.append(item)
                    if len(problems) >= _MOST_PROBLEMS:
                        break
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"dataset {name} cannot be read: {error}")
            else:
                if len(items) == before and not problems:
                    problems.append(f"dataset {name} is empty")
        if problems:
            raise CheckFailed(problems)
        return items

    def fingerprint(self) -> dict[str, str]:
        """The settings and the files' checksums."""
        files = {f"file {number}": fingerprint(Path(name).expanduser()) for number, name in enumerate(self.paths, start=1)}
        return {name: value for name, value in super().fingerprint().items() if name != "paths"} | files

    def _read(self, path: Path, problems: list[str]) -> Iterator[Item]:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    yield self._item(json.loads(line), where)
                except json.JSONDecodeError as error:
                    problems.append(f"{where} is not JSON: {error.msg} at character {error.pos + 1}")
                except ValueError as error:
                    problems.append(f"{where} {error}")
                if len(problems) >= _MOST_PROBLEMS:
                    return

    def _item(self, record: Any, where: str) -> Item:
        if not isinstance(record, dict):
            raise ValueError(f"holds a {type(record).__name__} instead of an object")
        for name in (self.prompt_field, self.answer_field):
            if name not in record:
                raise ValueError(f"has no field {name!r}; it has {sorted(record)}")
        rest = {key: value for key, value in record.items() if key not in (self.prompt_field, self.answer_field)}
        return Item(
            prompt=self._prompt(record[self.prompt_field]),
            answer=self._answer(record[self.answer_field]),
            metadata=rest,
            source=where,
        )

    def _prompt(self, value: Any) -> tuple[Mapping[str, str], ...] | str:
        if isinstance(value, str) and value.strip():
            return value if self.raw else self.chat({"role": "user", "content": value})
        if isinstance(value, list) and value and all(_is_message(message) for message in value) and not self.raw:
            return self.chat(*({"role": m["role"], "content": m["content"]} for m in value))
        raise ValueError(f"has a {self.prompt_field!r} that is neither a text nor a list of messages (role, content)")

    def _answer(self, value: Any) -> str:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"has a {self.answer_field!r} that is neither a text nor a number")
        answer = str(value)
        if self.answer_after:
            if self.answer_after not in answer:
                raise ValueError(f"has no {self.answer_after!r} in its {self.answer_field!r}")
            answer = answer.rsplit(self.answer_after, 1)[1]
        return answer.strip()


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
