"""What a person keeps beside a recipe: a reward with a signal, and ones that go wrong."""

from __future__ import annotations

from typing import Any


def vowel_share(text: str) -> float:
    return sum(character in "aeiouAEIOU" for character in text) / max(1, len(text))


def vowel_reward(response: str, item: dict[str, Any]) -> float:
    return vowel_share(response)


def broken_reward(response: str, item: dict[str, Any]) -> float:
    raise KeyError(f"no key for {item['question']}")
