"""Gathers what a run has left of its rows, and has the checker look at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hpcrl.algorithms.pacing import version_needed
from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.layout import MANIFEST
from hpcrl.checkpoint.state.manifest import newest
from hpcrl.config.diff import read_resolved
from hpcrl.dataplane.history import FOLDER
from hpcrl.dataplane.history.reader import HistoryReader
from hpcrl.dataplane.verify.checker import Checker
from hpcrl.dataplane.verify.commits import Commits
from hpcrl.dataplane.verify.prompts import PromptSum
from hpcrl.dataplane.verify.report import Report
from hpcrl.dataplane.verify.stream import Limits
from hpcrl.roles.samples import SAMPLES
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecords
from hpcrl.tracking.journal import RunJournalReader
from hpcrl.tracking.state import processes

Steps = Mapping[int, Mapping[int, PromptSum | None]]


@dataclass(frozen=True)
class Evidence:
    """A checked run.

    Attributes:
        live: not every process of the newest attempt has said how it ended, so it may be running.
        bytes: of the history on disk.
        repeated: events that stood in the history twice.
    """

    report: Report
    live: bool
    bytes: int
    repeated: int


def examine(run: RunDirectory) -> Evidence:
    """Check the history of a run against its recipe, its saves and its journal.

    Raises:
        CheckFailed: the run has no history, or its recipe cannot be read.
    """
    limits = limits_of(read_resolved(run.path))
    # The order matters on a live run: what was written down before must be in the history that is read after.
    live = is_live(run)
    steps = _journal(run)
    before, place = _newest(run)
    readers = [
        (attempt, HistoryReader(attempt.path / FOLDER)) for attempt in run.attempts() if (attempt.path / FOLDER).is_dir()
    ]
    if not readers:
        raise CheckFailed(
            [
                f"run {run.path} has no history of its rows: no attempt has a folder {FOLDER}; it was made by a version of "
                "hpcrl that kept none, or has not begun"
            ]
        )
    without = [number for number in steps if number not in {attempt.number for attempt, _ in readers}]
    checker = Checker(limits, whole=not any(number < readers[0][0].number for number in without))
    checker.missing.extend(f"{run.path}/attempt_{number} has trained steps and has no history" for number in without)
    for attempt, reader in readers:
        checker.begin(attempt.number)
        for number, event in reader.read():
            checker.see(number, event)
        checker.missing.extend(reader.missing)
        if not reader.events and attempt.number in steps:
            checker.missing.append(f"{attempt.path} has trained steps, and its history is empty")
    after, _ = _newest(run)
    told = {step: prompts for number in sorted(steps) for step, prompts in list(steps[number].items())[:-1]}
    report = checker.finish(Commits(stream=SAMPLES, before=before, after=after, place=place, steps=told), over=not live)
    if not report.events and not any(reader.missing for _, reader in readers):
        raise CheckFailed([f"the history of run {run.path} is still empty: no process has reached the data plane yet"])
    return Evidence(report, live, sum(reader.bytes for _, reader in readers), sum(reader.repeated for _, reader in readers))


def limits_of(recipe: Any) -> dict[str, Limits]:
    """What a resolved recipe, as JSON, promises of the streams that have prompts.

    Raises:
        CheckFailed: it is no recipe.
    """
    try:
        schedule, lag = recipe["schedule"], int(recipe["limits"]["version_lag"])
        samples, size, window = int(schedule["samples_per_prompt"]), int(schedule["prompts_per_step"]), schedule["window"]
        names = [stream["name"] for stream in recipe["streams"] if stream.get("prompt")]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckFailed([f"the run's recipe.json lacks schedule, limits or streams: {error!r}"]) from error

    @lru_cache(maxsize=4096)
    def needed(batch: int) -> int:
        return version_needed(batch, window=window, version_lag=lag)

    of_all = Limits(samples=samples, version_lag=lag, needed=lambda prompt: needed(prompt // size))
    return dict.fromkeys(names, of_all)


def is_live(run: RunDirectory) -> bool:
    """Whether a process of the newest attempt has not said how it ended."""
    attempts: list[Attempt] = run.attempts()
    return bool(attempts) and not set(processes(attempts[-1])) <= set(DoneRecords(attempts[-1]).read())


def _journal(run: RunDirectory) -> dict[int, dict[int, PromptSum | None]]:
    """By attempt and step, in the order of the journal, the prompts that it trained."""
    steps: dict[int, dict[int, PromptSum | None]] = {}
    for attempt, _, record in RunJournalReader(run).read():
        if record.get("kind") == "step" and isinstance(record.get("step"), int):
            of_attempt = steps.setdefault(attempt, {})
            of_attempt.pop(record["step"], None)
            of_attempt[record["step"]] = _sum(record.get("prompts"))
    return steps


def _sum(prompts: Iterable[int] | None) -> PromptSum | None:
    return None if prompts is None else PromptSum(prompts)


def _newest(run: RunDirectory) -> tuple[Cursor | None, str]:
    """The newest save's cursor, None where there is no save that has one; and the file that it is in."""
    manifest = newest(run.state, run.run_id)
    if manifest is None:
        return None, ""
    return Cursor.from_record(manifest.cursor), f"{run.state.name}/{manifest.name}/{MANIFEST}"
