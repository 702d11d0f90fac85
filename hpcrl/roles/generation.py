"""Prompts to an engine over HTTP, watched while it is at work: a dead engine is found in seconds, not at the deadline."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hpcrl.engines.client import EngineClient, EngineError, EngineRefused, EngineUnavailable
from hpcrl.engines.completion import Completion, Sampling, sample_seed
from hpcrl.roles.producer import EngineFailed
from hpcrl.roles.prompting import Answer, Prompt
from hpcrl.roles.replicas import Engine
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.stop import StopFlag

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

# An engine that failed so many looks at its health in a row is given up.
_LOOKS = 3
_LOOK_S = 1.0
_LOOK_DEADLINE_S = 5.0
_STOP_S = 0.1
# Samples that get no token in so many requests in a row are not cut short by accident.
_TRIES = 3
_MOST_THREADS = 256
T = TypeVar("T")


class HttpGenerate:
    """Asks engines for the samples of prompts. Thread-safe; a context manager, which lets go of every connection.

    The sampling seed of a prompt follows from the recipe's seed and the prompt's number, so a run repeats.
    """

    def __init__(self, context: RoleContext, sampling: Sampling) -> None:
        self._context, self._sampling = context, sampling
        self._lock = threading.Lock()
        self._clients: dict[str, EngineClient] = {}
        # One for each sample's request that goes on; no more than requests are under way.
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="go-on")

    def __call__(self, engine: Engine, prompts: Sequence[Prompt], stop: StopFlag) -> list[list[Answer]]:
        """Answers of each prompt.

        Raises:
            EngineFailed: the engine is dead, busy, or did not answer within ``limits.wait_s``.
            RoleFailed: the engine says that the request is wrong, or its log-probabilities are no numbers.
            Stopped: the flag was set; the engine was told to drop the request.
        """
        recipe = self._context.recipe
        client = self._client(engine)
        future = client.submit(
            [prompt.ids.tolist() for prompt in prompts],
            self._sampling,
            samples=recipe.schedule.samples_per_prompt,
            seeds=[prompt_seed(recipe.seed, prompt.number) for prompt in prompts],
            seconds=recipe.limits.wait_s,
        )
        try:
            completions = self._whole(engine, client, prompts, self._watch(engine, client, future, stop), stop)
        except EngineUnavailable as error:
            raise EngineFailed(str(error)) from error
        except EngineRefused as error:
            raise RoleFailed(
                f"{self._context.identity.name}: engine {engine.name} refused prompts {prompts[0].number} ff.: {error}",
                read=self._context.attempt.log(engine.name),
                do="mend the prompt or the sampling settings that it names",
            ) from error
        finally:
            future.cancel()
        return [[self._answer(engine, completion) for completion in of_prompt] for of_prompt in completions]

    def __enter__(self) -> HttpGenerate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients.values():
            client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _client(self, engine: Engine) -> EngineClient:
        with self._lock:
            if engine.url not in self._clients:
                self._clients[engine.url] = EngineClient(engine.url, key=self._context.key, call_s=_LOOK_DEADLINE_S)
            return self._clients[engine.url]

    def _whole(
        self,
        engine: Engine,
        client: EngineClient,
        prompts: Sequence[Prompt],
        completions: list[list[Completion]],
        stop: StopFlag,
    ) -> list[list[Completion]]:
        """Go on with what was cut short, as by an engine that lets go of its memory; the tokens that were made stay."""
        recipe, each = self._context.recipe, self._context.recipe.schedule.samples_per_prompt
        flat, tries = [completion for of_prompt in completions for completion in of_prompt], 0
        while tries < _TRIES and any(completion.finish_reason == "abort" for completion in flat):
            rid, made = uuid.uuid4().hex, sum(len(completion.tokens) for completion in flat)
            future = self._threads.submit(
                client.finish,
                [prompt.ids.tolist() for prompt in prompts for _ in range(each)],
                flat,
                self._sampling,
                seeds=[sample_seed(prompt_seed(recipe.seed, prompt.number), i) for prompt in prompts for i in range(each)],
                seconds=recipe.limits.wait_s,
                rid=rid,
            )
            try:
                flat = self._watch(engine, client, future, stop)
            except BaseException:
                with suppress(EngineError):
                    client.abort(rid)
                raise
            tries = tries + 1 if sum(len(completion.tokens) for completion in flat) == made else 0
        return [flat[start : start + each] for start in range(0, len(flat), each)]

    def _watch(self, engine: Engine, client: EngineClient, future: Future[T], stop: StopFlag) -> T:
        missed, look_at = 0, time.monotonic() + _LOOK_S
        while not wait([future], timeout=_STOP_S).done:
            if stop.is_set():
                raise Stopped(f"asked to stop while engine {engine.name} was at work")
            if time.monotonic() >= look_at:
                missed = 0 if client.health() else missed + 1
                if missed >= _LOOKS:
                    raise EngineFailed(f"engine {engine.name} at {engine.url} does not answer at /health")
                look_at = time.monotonic() + _LOOK_S
        return future.result()

    def _answer(self, engine: Engine, completion: Completion) -> Answer:
        if not np.isfinite(completion.logprobs).all():
            raise RoleFailed(
                f"{self._context.identity.name}: engine {engine.name} gave log-probabilities that are no numbers, version "
                f"{completion.versions.max(initial=0)}",
                read=self._context.attempt.log(engine.name),
                do="the weights are likely broken: look at the trainer's grad_norm, lower the learning rate",
            )
        return Answer(completion.tokens, completion.logprobs, completion.versions, completion.finish_reason)


def prompt_seed(seed: int, prompt_number: int) -> int:
    """Sampling seed of a prompt, 32 bits."""
    return int(np.random.SeedSequence([seed, prompt_number]).generate_state(1, np.uint32)[0])
