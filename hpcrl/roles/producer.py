"""The rollout's loop: waits for the gate, hands prompts to engines, puts their answers into the queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcrl.algorithms.pacing import version_needed
from hpcrl.data.cursor import batch_numbers
from hpcrl.roles.feedback import SERVED
from hpcrl.roles.prompting import Answer, Prompt, PromptSource
from hpcrl.roles.replicas import Engine, Replicas, deal
from hpcrl.run.errors import DeadlineExceeded, RoleFailed
from hpcrl.run.stop import StopFlag, back_off, wait_for

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)


class EngineFailed(Exception):
    """An engine did not answer a request; another one, or the same one later, may."""


# Answers of each prompt, in the prompts' order. Raises EngineFailed when a repeat may help and Stopped when the flag is set;
# anything else ends the role.
Generate = Callable[[Engine, Sequence[Prompt], StopFlag], list[list[Answer]]]


@dataclass(frozen=True)
class Unit:
    """Prompts of one batch that go to an engine in one request.

    Attributes:
        version: the least policy version that may answer.
        engine: the engine that they were dealt to; None takes whichever is free.
    """

    batch: int
    numbers: tuple[int, ...]
    version: int
    engine: Engine | None = None


class Producer:
    """Produces prompts ``first`` to ``total`` in batches, this replica's share of them.

    In lock-step the prompts of a batch are dealt over the engines, one request each, so that a run with the same engines
    batches alike and repeats bit for bit. Otherwise each prompt is a request of its own, ``concurrency`` of them at a time.

    Args:
        settle_s: in lock-step, how long to wait for all engines once the first serves the version [s].
    """

    def __init__(
        self,
        context: RoleContext,
        source: PromptSource,
        generate: Generate,
        *,
        stream: str,
        engines: int,
        concurrency: int,
        settle_s: float,
    ) -> None:
        self._context, self._source, self._generate = context, source, generate
        self._stream, self._engines, self._concurrency, self._settle_s = stream, engines, concurrency, settle_s
        self._replicas = Replicas()
        self._pending: set[Future[None]] = set()
        # Set when the loop ends early, whether it was asked to or failed; the context's own flag says only the former.
        self._abandon = StopFlag()
        self._lock_step = context.recipe.schedule.window == 1

    def run(self, first: int, total: int, *, done: Collection[int] = ()) -> None:
        """Until every prompt is answered.

        Args:
            done: prompts from ``first`` on that were answered already.

        Raises:
            RoleFailed: no engine answered a prompt within ``limits.wait_s``.
            Stopped, DeadlineExceeded: as the context's waits.
        """
        schedule, identity = self._context.recipe.schedule, self._context.identity
        size = schedule.prompts_per_step
        with ThreadPoolExecutor(max_workers=self._concurrency, thread_name_prefix="prompt") as threads:
            try:
                for batch in range(first // size, -(-total // size)):
                    numbers = batch_numbers(batch, size, total)
                    mine = [k for k in numbers if k >= first and k not in done and k % identity.world_size == identity.rank]
                    for unit in self._units(batch, mine):
                        self._pending.add(threads.submit(self._answer, unit))
                        self._reap(self._concurrency - 1)
                self._reap(0)
            except BaseException:
                self._abandon.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _units(self, batch: int, numbers: list[int]) -> list[Unit]:
        if not numbers:
            return []
        recipe = self._context.recipe
        version = version_needed(batch, window=recipe.schedule.window, version_lag=recipe.limits.version_lag)
        self._context.phase("gate", step=batch + 1)
        engines = self._gate(batch, version)
        self._context.phase("generate", step=batch + 1)
        if self._lock_step:
            return [Unit(batch, tuple(share), version, engine) for engine, share in deal(numbers, engines)]
        return [Unit(batch, (number,), version) for number in numbers]

    def _gate(self, batch: int, version: int) -> list[Engine]:
        """Engines that may answer a batch, all of them in lock-step unless some do not come."""
        what = f"an engine with policy version {version} or newer for batch {batch}"
        first_seen: float | None = None

        def poll() -> list[Engine] | None:
            nonlocal first_seen
            self._reap(len(self._pending), wait_s=0)
            engines = self._fresh(version)
            if not engines or not self._lock_step:
                return engines or None
            first_seen = first_seen or time.monotonic()
            well = self._replicas.well(engines) or engines
            settled = len(engines) >= self._engines or time.monotonic() - first_seen >= self._settle_s
            return well if settled else None

        return wait_for(f"{what} on feedback stream {SERVED!r}", poll, seconds=self._wait_s, stop=self._context.stop)

    def _fresh(self, version: int) -> list[Engine]:
        newest = self._context.queue.newest(SERVED)
        return self._replicas.fresh({name: feedback.value for name, feedback in newest.items()}, version)

    @property
    def _wait_s(self) -> float:
        return self._context.recipe.limits.wait_s

    def _reap(self, most: int, *, wait_s: float = 0.25) -> None:
        """Wait until at most so many units are under way; raises the first error of one that ended."""
        while True:
            done, self._pending = wait(self._pending, timeout=0)
            for future in done:
                future.result()
            if len(self._pending) <= most:
                return
            self._context.raise_if_stopped()
            wait(self._pending, timeout=wait_s, return_when=FIRST_COMPLETED)

    def _answer(self, unit: Unit) -> None:
        started = time.monotonic()
        prompts = [self._source.prompt(number) for number in unit.numbers]
        answers = self._ask(unit, prompts)
        context = self._context
        for prompt, of_prompt in zip(prompts, answers, strict=True):
            context.queue.put(self._stream, self._source.rows(prompt, of_prompt, step=unit.batch))
        context.journal.write(
            "sampled",
            step=unit.batch + 1,
            prompts=len(prompts),
            samples=sum(map(len, answers)),
            tokens=sum(len(answer.ids) for of_prompt in answers for answer in of_prompt),
            truncated=sum(answer.finish == "length" for of_prompt in answers for answer in of_prompt),
            seconds=time.monotonic() - started,
        )

    def _ask(self, unit: Unit, prompts: list[Prompt]) -> list[list[Answer]]:
        """Ask engine after engine until one answers the unit with weights that are new enough."""
        failures: list[str] = []

        def attempt() -> list[list[Answer]] | None:
            engines = self._fresh(unit.version)
            if not engines:
                return None
            dealt = unit.engine if not failures and unit.engine in self._replicas.well(engines) else None
            engine = dealt or self._replicas.choose(engines)
            try:
                with self._replicas.request(engine):
                    answers = self._generate(engine, prompts, self._abandon)
                    _check_answers(engine, answers, unit.version)
            except EngineFailed as failure:
                failures.append(str(failure))
                log.warning("prompts %s: %s; trying again", _span(unit.numbers), failure)
                return None
            return answers

        what = f"answers to prompts {_span(unit.numbers)} of batch {unit.batch}"
        try:
            return wait_for(what, attempt, seconds=self._wait_s, stop=self._abandon, pauses=back_off(0.1, 5.0, 2.0))
        except DeadlineExceeded as late:
            last = failures[-1] if failures else f"no engine served version {unit.version}"
            raise RoleFailed(
                f"{self._context.identity.name}: {late} after {len(failures)} failed requests, the last: {last}",
                read=self._context.attempt.path / "logs",
                do="look at the inference role's log; raise limits.wait_s if the engines are only slow",
            ) from late


def _check_answers(engine: Engine, answers: list[list[Answer]], version: int) -> None:
    for answer in (answer for of_prompt in answers for answer in of_prompt):
        if answer.finish == "abort":
            raise EngineFailed(f"engine {engine.name} aborted the request")
        if len(answer.versions) and int(answer.versions.min()) < version:
            raise EngineFailed(f"engine {engine.name} answered with version {answer.versions.min()}, not {version} or newer")


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
