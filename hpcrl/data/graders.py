"""Ready reward functions; name one as ``hpcrl.data.graders:exact_number``."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Any

from hpcrl.data.gym_tasks import registry_with
from hpcrl.data.rewards import Unparseable

# A final answer is shorter, and what a person's patience ends at is longer.
_ANSWER_CHARACTERS = 4096
_BOX = "\\boxed"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact_number(response: str, item: dict[str, Any]) -> float:
    """1 if the last number in the response equals the answer, else 0. Thousands may be set apart by commas.

    Raises:
        Unparseable: the response holds no number.
    """
    numbers = _NUMBER.findall(response)
    if not numbers:
        raise Unparseable
    return float(_decimal(numbers[-1]) == _decimal(item["answer"]))


def reasoning_gym_score(response: str, item: dict[str, Any]) -> float:
    """The score, 0 to 1, by the scorer of the reasoning-gym task that the item came from.

    Raises:
        Unparseable: the response is empty.
    """
    answer = response.strip()
    if not answer:
        raise Unparseable
    metadata = item["metadata"]
    entry = {"question": metadata["question"], "answer": item["answer"], "metadata": metadata}
    return float(_scorer(metadata["source_dataset"])(answer, entry))


def math_verify(response: str, item: dict[str, Any]) -> float:
    """1 if math-verify finds the response's final expression equal to the answer, else 0.

    It looks at the last box, or where there is none at the end of the response. Whatever a response makes it do, such as to
    raise a number to one of a million digits, is bounded by the time and memory of the worker that this runs in.

    Raises:
        Unparseable: no expression is found in the response.
        ValueError: none is found in the item's answer.
    """
    from math_verify import parse, verify

    # Its own time limits use signals; the worker that this runs in has one for the whole sample.
    given = parse(_last_part(response), parsing_timeout=None)
    if not given:
        raise Unparseable
    answer = item["answer"]
    wanted = parse(answer if "$" in answer or "\\boxed" in answer else f"${answer}$", parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r} of {item['source']}")
    return float(verify(wanted, given, timeout_seconds=None))


def _last_part(response: str) -> str:
    box = response.rfind(_BOX)
    return response[-_ANSWER_CHARACTERS:] if box < 0 else response[box : box + _ANSWER_CHARACTERS]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").strip())


@cache
def _scorer(task: str) -> Any:
    return registry_with(task).get_score_answer_fn(task)
