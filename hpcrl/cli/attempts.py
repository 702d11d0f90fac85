"""Finding the attempt of a run that a command is about."""

from __future__ import annotations

from pathlib import Path

from hpcrl.launch.find import find_run
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed


def find_attempt(path: Path, number: int | None) -> Attempt:
    """An attempt of the run in a directory or of a name, the newest without a number.

    Raises:
        CheckFailed: there is no such run, or it has no such attempt.
    """
    return attempt_of(find_run(path), number)


def attempt_of(run: RunDirectory, number: int | None) -> Attempt:
    """An attempt of a run, the newest without a number.

    Raises:
        CheckFailed: the run has no such attempt.
    """
    if number is None:
        return run.latest()
    attempts = run.attempts()
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    have = ", ".join(str(attempt.number) for attempt in attempts) or "none"
    raise CheckFailed([f"run {run.path} has no attempt {number}; it has: {have}"])
