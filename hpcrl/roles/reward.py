"""Reward: reads responses, grades them in killable worker processes, fills in reward and outcome."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcrl.data.pool import GradingLimits, GradingPool
from hpcrl.data.rewards import FAILED, Grade, load_reward
from hpcrl.recipe import Reads, Recipe, Role, Writes
from hpcrl.roles.samples import GRADED_NAMES, SAMPLES
from hpcrl.roles.tally import Tally
from hpcrl.run.errors import RoleFailed, Stopped, checked
from hpcrl.run.stop import wait_for

if TYPE_CHECKING:
    from hpcrl.dataplane.interface import Batch
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)

_COLUMNS = ("step", "response", "item")


@dataclass(frozen=True, kw_only=True)
class Reward(Role):
    """Grades each sample with a person's function.

    Attributes:
        function: ``package.module:function`` or ``path/to/file.py:function``, see :mod:`hpcrl.data.rewards`.
        workers: processes that grade; 0 takes one for each core of the role.
        sample_s: time limit of one sample [s].
        memory_gib: the most memory of one worker [GiB]; 0 = no limit. Beyond it a sample fails instead of the node.
        right_from: the least reward that counts as right in the outcomes.
        samples_per_worker: a worker process is replaced after so many samples.
        blocks: blocks graded at a time.
    """

    function: str
    workers: int = 0
    sample_s: float = 10.0
    memory_gib: float = 8.0
    right_from: float = 1.0
    samples_per_worker: int = 5000
    blocks: int = 16
    stream: str = SAMPLES

    def reads(self) -> tuple[Reads, ...]:
        """Response and item of each sample."""
        return (Reads(stream=self.stream, columns=_COLUMNS),)

    def writes(self) -> tuple[Writes, ...]:
        """Reward and outcome of each sample."""
        return (Writes(stream=self.stream, columns=GRADED_NAMES),)

    def check(self, recipe: Recipe) -> list[str]:
        """The function can be imported and the limits make sense."""
        problems: list[str] = []
        if self.sample_s <= 0 or self.workers < 0 or self.memory_gib < 0 or self.samples_per_worker < 1 or self.blocks < 1:
            problems.append(
                f"reward limits must be positive: sample_s {self.sample_s}, workers {self.workers}, memory_gib "
                f"{self.memory_gib}, samples_per_worker {self.samples_per_worker}, blocks {self.blocks}"
            )
        checked(lambda: load_reward(self.function), problems)
        return problems

    def prepare(self, *, gpus: bool) -> None:
        """The pool of workers; the function is theirs to import."""
        import numpy  # noqa: F401
        import pebble  # noqa: F401

    def run(self, context: RoleContext) -> None:
        """Grade until the stream ends."""
        limits = GradingLimits(
            workers=self.workers or max(1, context.identity.cpus),
            sample_s=self.sample_s,
            memory_gib=self.memory_gib,
            samples_per_worker=self.samples_per_worker,
            right_from=self.right_from,
        )
        context.phase("start")
        with GradingPool(self.function, limits) as pool:
            try:
                _Grading(self, context, pool).run()
            except Stopped:
                log.info("asked to stop; ungraded samples are dropped with the attempt")
                raise
        context.queue.close_stream(self.stream)


class _Grading:
    """Blocks under way, oldest first."""

    def __init__(self, role: Reward, context: RoleContext, pool: GradingPool) -> None:
        self._role, self._context, self._pool = role, context, pool
        schedule = context.recipe.schedule
        self._tally = Tally(schedule.prompts_per_step * schedule.samples_per_prompt, context.identity.world_size)
        self._block_rows = context.recipe.stream(role.stream).block_rows
        self._under_way: deque[tuple[Batch, list[Future[Grade]]]] = deque()
        self._example = ""

    def run(self) -> None:
        """Until the stream ends; raises what the context's waits raise."""
        ended = False
        while not ended or self._under_way:
            self._context.raise_if_stopped()
            if not ended and len(self._under_way) < self._role.blocks:
                ended = self._take()
            if self._under_way and (ended or len(self._under_way) >= self._role.blocks or self._oldest_is_done()):
                self._finish_oldest()
        self._raise_if_step_failed(ended=True)

    def _take(self) -> bool:
        """Start grading what is there; whether the stream has ended."""
        from hpcrl.dataplane.interface import EndOfStream

        role, context = self._role, self._context
        free = (role.blocks - len(self._under_way)) * self._block_rows
        try:
            if self._under_way:
                batch = context.queue.read(role.stream, _COLUMNS, max_rows=free, wait_s=0.01)
            else:
                batch = context.read(role.stream, _COLUMNS, max_rows=free)
        except EndOfStream:
            return True
        for block in batch.split() if batch is not None else ():
            futures = [
                self._pool.submit(response, json.loads(item))
                for response, item in zip(block.columns["response"], block.columns["item"], strict=True)
            ]
            self._under_way.append((block, futures))
        return False

    def _oldest_is_done(self) -> bool:
        return all(future.done() for future in self._under_way[0][1])

    def _finish_oldest(self) -> None:
        import numpy as np

        context = self._context
        wait_for(
            f"{len(self._under_way[0][1])} responses to be graded by {self._role.function!r}",
            lambda: True if self._oldest_is_done() else None,
            seconds=context.recipe.limits.wait_s,
            stop=context.stop,
        )
        block, futures = self._under_way.popleft()
        grades = [self._pool.collect(future) for future in futures]
        # A scheduler's signal ends the workers too, which says nothing of their samples.
        context.raise_if_stopped()
        step = int(np.asarray(block.columns["step"])[0])
        self._keep_example(block, grades)
        counts = self._tally.add(step, grades)
        context.phase("grade", step=step + 1)
        context.journal.write("outcomes", step=step + 1, **counts)
        self._raise_if_step_failed()
        context.queue.fill(
            block,
            {
                "reward": np.array([grade.reward for grade in grades], np.float32),
                "outcome": np.array([grade.outcome for grade in grades], np.int8),
            },
        )

    def _keep_example(self, block: Batch, grades: Sequence[Grade]) -> None:
        for row, grade in enumerate(grades):
            if grade.outcome in FAILED and not self._example:
                item, response = block.columns["item"][row], block.columns["response"][row]
                self._example = f"item: {item}\nresponse: {response!r}\n{grade.outcome.name.lower()}: {grade.error}"
                log.warning("first sample that could not be graded:\n%s", self._example)

    def _raise_if_step_failed(self, *, ended: bool = False) -> None:
        step = self._tally.failed_step(ended=ended)
        if step is not None:
            raise RoleFailed(
                f"{self._context.identity.name}: reward function {self._role.function!r} gave no grade for any sample of step "
                f"{step + 1}, only timeouts and exceptions. One example:\n{self._example}\n",
                do="mend the function, or raise sample_s if it is only slow",
            )
