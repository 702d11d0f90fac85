"""What a reward function is, how one is found by name, and how its answer is judged.

A reward function takes the response's text and the item's record (``question``, ``answer``, ``metadata``, ``source``) and
returns a number or a :class:`Score`. It raises :class:`Unparseable` when the response holds no answer to judge.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcrl.run.errors import CheckFailed


class Unparseable(Exception):
    """Raised by a reward function: the response holds no answer in the form asked for."""


class Outcome(IntEnum):
    """How grading one response ended; the values stand in column ``outcome``."""

    RIGHT = 0
    WRONG = 1
    UNPARSEABLE = 2
    TIMEOUT = 3
    EXCEPTION = 4


# Grading itself failed: nothing is known about the response.
FAILED = (Outcome.TIMEOUT, Outcome.EXCEPTION)


@dataclass(frozen=True, kw_only=True)
class Score:
    """A reward whose function says by itself whether the response was right.

    Attributes:
        right: None leaves it to the threshold.
    """

    reward: float
    right: bool | None = None


RewardFunction = Callable[[str, dict[str, Any]], float | Score]


@dataclass(frozen=True, kw_only=True)
class Grade:
    """One graded response.

    Attributes:
        error: what went wrong, with its traceback; empty unless the outcome is a timeout or an exception.
    """

    reward: float
    outcome: Outcome
    error: str = ""


def load_reward(name: str) -> RewardFunction:
    """The function called ``package.module:function`` or ``path/to/file.py:function``.

    Raises:
        CheckFailed: the name has no such form, the module or file cannot be imported (with its traceback's end), or it has
            no such function.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise CheckFailed([f"reward {name!r} is neither 'module:function' nor 'path/to/file.py:function'"])
    try:
        module = _import(module_name)
    # The import runs a person's own code, which may fail in any way.
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise CheckFailed(
            [f"reward module {module_name!r} cannot be imported: {type(error).__name__}: {error}{where}"]
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        found = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise CheckFailed([f"reward module {module_name!r} has no function {attribute!r}; it has {found}"])
    reward: RewardFunction = function
    return reward


def grade(function: RewardFunction, response: str, item: dict[str, Any], *, right_from: float) -> Grade:
    """Call a reward function and judge its answer, in this process and without a time limit.

    Args:
        right_from: the least reward that counts as right, unless the function says so itself.
    """
    try:
        answer = function(response, item)
        score = answer if isinstance(answer, Score) else Score(reward=answer)
        reward = float(score.reward)
        if not math.isfinite(reward):
            raise ValueError(f"the reward function returned {reward}")
    except Unparseable:
        return Grade(reward=0.0, outcome=Outcome.UNPARSEABLE)
    # Counted and shown, whatever a person's function raises; a sample must never end the run by itself.
    except (Exception, SystemExit):  # noqa: BLE001
        return Grade(reward=0.0, outcome=Outcome.EXCEPTION, error=traceback.format_exc())
    right = score.right if score.right is not None else reward >= right_from
    return Grade(reward=reward, outcome=Outcome.RIGHT if right else Outcome.WRONG)


def _import(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().absolute()
    spec = importlib.util.spec_from_file_location(f"_reward_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    module = importlib.util.module_from_spec(spec)
    # Found by name when what the function returns is pickled.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
