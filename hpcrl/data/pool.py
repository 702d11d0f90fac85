"""Grading in worker processes that can be killed: a reward function that hangs or dies costs its own sample, not the run."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any

from hpcrl.data.rewards import Grade, Outcome, RewardFunction, grade, load_reward
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class GradingLimits:
    """Bounds of the workers.

    Attributes:
        workers: processes.
        sample_s: time limit of one sample [s]; the worker that exceeds it is killed.
        memory_gib: of a worker's own data [GiB]; a function that wants more gets a MemoryError instead of the node's memory.
            0 = no limit.
        samples_per_worker: a worker is replaced after so many, which bounds what a leak can take.
        right_from: the least reward that counts as right.
    """

    workers: int = 1
    sample_s: float = 10.0
    memory_gib: float = 8.0
    samples_per_worker: int = 5000
    right_from: float = 1.0


class GradingPool:
    """Worker processes that grade responses with one reward function. Use as a context manager; thread-safe.

    Workers are forked from a clean server process, so they inherit neither threads nor sockets of this one, and they import
    the reward function before their first sample, so the import does not count against the time limit.
    """

    def __init__(self, reward: str, limits: GradingLimits) -> None:
        from pebble import ProcessPool

        self._reward, self._limits = reward, limits
        self._pool = ProcessPool(
            max_workers=limits.workers,
            max_tasks=limits.samples_per_worker,
            initializer=_prepare,
            initargs=(reward, int(limits.memory_gib * (1 << 30))),
            context=multiprocessing.get_context("forkserver"),
        )

    def submit(self, response: str, item: dict[str, Any]) -> Future[Grade]:
        """Start grading one response; see :meth:`collect`."""
        future: Future[Grade] = self._pool.schedule(
            _grade_one, args=(self._reward, response, item, self._limits.right_from), timeout=self._limits.sample_s
        )
        return future

    def grade(self, responses: Sequence[str], items: Sequence[dict[str, Any]]) -> list[Grade]:
        """Grades of the responses, in their order."""
        futures = [self.submit(response, item) for response, item in zip(responses, items, strict=True)]
        return [self.collect(future) for future in futures]

    def collect(self, future: Future[Grade]) -> Grade:
        """Wait for a grade. A worker that was killed or died gives one too."""
        from pebble import ProcessExpired

        try:
            return future.result()
        except TimeoutError:
            error = f"the reward function took longer than {self._limits.sample_s:g} s and was killed"
            return Grade(reward=0.0, outcome=Outcome.TIMEOUT, error=error)
        except ProcessExpired as death:
            error = f"the reward function ended its worker process (pid {death.pid}, exit code {death.exitcode})"
            return Grade(reward=0.0, outcome=Outcome.EXCEPTION, error=error)

    def close(self) -> None:
        """Kill what still runs and wait for every worker to be gone."""
        self._pool.stop()
        self._pool.join()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@cache
def _load(reward: str) -> RewardFunction:
    return load_reward(reward)


def _prepare(reward: str, memory_bytes: int) -> None:
    if memory_bytes:
        # Unlike the address space, this leaves out what is only reserved.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    threading.Thread(target=_end_with_owner, name="owner watch", daemon=True).start()
    # A failure is told with the first sample; a worker that failed to start would be started again for ever.
    with suppress(CheckFailed):
        _load(reward)


def _end_with_owner() -> None:
    # The process that grades, not the fork server. Workers keep the server alive, so without this a worker that hangs in a
    # sample would outlive a killed owner for ever.
    owner = multiprocessing.parent_process()
    if owner is not None:
        owner.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _grade_one(reward: str, response: str, item: dict[str, Any], right_from: float) -> Grade:
    try:
        function = _load(reward)
    except CheckFailed as failed:
        return Grade(reward=0.0, outcome=Outcome.EXCEPTION, error="; ".join(failed.problems))
    return grade(function, response, item, right_from=right_from)
