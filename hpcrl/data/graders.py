"""Ready reward functions; name one as ``hpcrl.data.graders:exact_number``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

from hpcrl.data.gym_tasks import registry_with
from hpcrl.data.rewards import Unparseable

# A final answer is shorter, and what a person's patience ends at is longer.
_ANSWER_CHARACTERS = 4096
_BOX = "\\boxed"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
# More is no answer to a puzzle of a few numbers.
_LINE_CHARACTERS = 256
_ARITHMETIC = re.compile(r"[\d\s+*/()-]+")
# What a right use of the numbers is worth where the result is wrong (TinyZero's format reward, github.com/Jiayi-Pan/TinyZero).
_RIGHT_NUMBERS = 0.1
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


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


def countdown(response: str, item: dict[str, Any]) -> float:
    """1 if the response's first line makes the target of each number once, 0.1 if it makes something else of them.

    The scorer of reasoning-gym pays for any number by itself, which a policy soon finds and does not leave again. Of an
    equation the better side counts.

    Raises:
        Unparseable: the line holds no expression of whole numbers and the four operations.
    """
    metadata = item["metadata"]
    line, _, _ = response.strip().partition("\n")
    scores = [_countdown_side(side, metadata["numbers"], metadata["target"]) for side in line[:_LINE_CHARACTERS].split("=")]
    found = [score for score in scores if score is not None]
    if not found:
        raise Unparseable
    return max(found)


def _countdown_side(text: str, given: list[int], target: int) -> float | None:
    """The reward of an expression; None if it is none."""
    numbers: list[int] = []
    if not _ARITHMETIC.fullmatch(text):
        return None
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, numbers)
    except ZeroDivisionError:
        return 0.0
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if sorted(numbers) != sorted(given):
        return 0.0
    return 1.0 if value == target else _RIGHT_NUMBERS


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


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    """The value of an expression; the numbers in it are added to ``numbers``."""
    match node:
        case ast.Constant(value=int() as number):
            numbers.append(number)
            return Fraction(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _value(left, numbers), _value(right, numbers)
            return _OPERATORS[type(op)](first, second)
        case _:
            raise ValueError(ast.dump(node)[:80])


def _last_part(response: str) -> str:
    box = response.rfind(_BOX)
    return response[-_ANSWER_CHARACTERS:] if box < 0 else response[box : box + _ANSWER_CHARACTERS]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").strip())


@cache
def _scorer(task: str) -> Any:
    return registry_with(task).get_score_answer_fn(task)
