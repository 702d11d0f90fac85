"""Client of an inference engine that speaks SGLang's HTTP: a real SGLang server or the embedded engine.

Blocking calls for a role's loop; :meth:`EngineClient.submit` does not block, for work that goes on meanwhile. Every error names
the URL and the route.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcrl.engines.calls import CONNECT_S, EngineCalls, EngineError, EngineRefused, EngineUnavailable
from hpcrl.engines.capabilities import Capabilities, probe
from hpcrl.engines.completion import (
    Completion,
    Sampling,
    finish_body,
    generate_body,
    prompt_logprobs,
    sample_rids,
    score_body,
    version_number,
)
from hpcrl.engines.device_memory import Memory
from hpcrl.engines.verify import check_loaded
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.stop import wait_for

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EngineClient", "EngineError", "EngineRefused", "EngineUnavailable", "Loads", "ModelInfo", "WeightUpdate"]


@dataclass(frozen=True)
class ModelInfo:
    """What an engine serves.

    Attributes:
        version: policy version.
        weight_hash: hash of the loaded weights, where the engine gives one (the embedded one does).
    """

    model_path: str
    version: int
    weight_hash: str | None


@dataclass(frozen=True)
class WeightUpdate:
    """Answer to an update of the weights.

    Attributes:
        weight_hash: hash of what is loaded now, where the engine gives one.
    """

    message: str
    weight_hash: str | None


@dataclass(frozen=True)
class Loads:
    """What an engine is at, or was some tokens ago.

    Attributes:
        running, waiting: samples.
        token_usage: share of the cache in use, 0 to 1.
        throughput: generated tokens a second, lately.
    """

    running: int
    waiting: int
    token_usage: float
    throughput: float


class EngineClient(EngineCalls):
    """One engine. Safe from any thread; close it when done.

    Args:
        url: ``http://host:port``.
        key: the run's key, sent as ``Authorization: Bearer``.
        initial_version: policy version of the weights that the engine started with.
        call_s: deadline of the calls that steer the engine [s].
    """

    def __init__(self, url: str, *, key: str | None = None, initial_version: int = 0, call_s: float = 60.0) -> None:
        super().__init__(url, key=key, call_s=call_s)
        self._initial_version = initial_version
        # Samples of each request under way, by its name.
        self._running: dict[str, int] = {}

    @cached_property
    def capabilities(self) -> Capabilities:
        """What this engine can do, asked once.

        Raises:
            EngineUnavailable: it does not answer.
        """
        return probe(self)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        samples: int = 1,
        seeds: Sequence[int] | None = None,
        seconds: float,
        rid: str | None = None,
    ) -> Future[list[list[Completion]]]:
        """Start generating; cancelling the future aborts the request at the server. See :meth:`generate`."""
        name = rid or uuid.uuid4().hex
        return self._start(generate_body(prompts, sampling, samples, seeds, name), samples, seconds, name)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        samples: int = 1,
        seeds: Sequence[int] | None = None,
        seconds: float,
        rid: str | None = None,
    ) -> list[list[Completion]]:
        """``samples`` completions of each prompt, by prompt.

        Args:
            seeds: one a prompt; the same seed, prompts and weights give the same tokens on a server that honours seeds.
            seconds: deadline of the whole call.
            rid: name for :meth:`abort`.

        Raises:
            EngineRefused: the request is wrong (a prompt longer than the context, a bad parameter).
            EngineUnavailable: no answer within the deadline; it may be asked again, of this engine or another.
        """
        return self._wait(self.submit(prompts, sampling, samples=samples, seeds=seeds, seconds=seconds, rid=rid))

    def finish(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Completion],
        sampling: Sampling,
        *,
        seeds: Sequence[int] | None = None,
        seconds: float,
        rid: str | None = None,
    ) -> list[Completion]:
        """Go on with samples that were cut short: their tokens stay, with their log-probabilities and versions.

        Args:
            prompts: one a sample.
            begun: those that did not end in ``abort`` are given back as they are.
            seeds: one a sample.

        Raises:
            EngineRefused, EngineUnavailable: as :meth:`generate`.
        """
        done = list(begun)
        open_ones = [i for i, one in enumerate(done) if one.finish_reason == "abort"]
        for i in [i for i in open_ones if len(done[i].tokens) >= sampling.max_new_tokens]:
            done[i] = done[i].ended("length")
            open_ones.remove(i)
        if not open_ones:
            return done
        name = rid or uuid.uuid4().hex
        picked = None if seeds is None else [seeds[i] for i in open_ones]
        body = finish_body([prompts[i] for i in open_ones], [done[i] for i in open_ones], sampling, picked, name)
        for i, (rest,) in zip(open_ones, self._wait(self._start(body, 1, seconds, name)), strict=True):
            done[i] = done[i].followed_by(rest)
        return done

    def score(self, sequences: Sequence[Sequence[int]], *, seconds: float) -> list[np.ndarray]:
        """Log-probability of each token but the first given those before it, under the softmax at temperature 1.

        Returns:
            One float32 (tokens - 1,) a sequence.

        Raises:
            EngineRefused, EngineUnavailable: as :meth:`generate`.
        """
        body = score_body(sequences)
        answers = self.ask("POST", "/generate", body, seconds=seconds)
        listed = answers if isinstance(answers, list) else [answers]
        try:
            return [prompt_logprobs(answer, row) for answer, row in zip(listed, body["input_ids"], strict=True)]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"an answer that makes no sense ({error!r}): {str(listed[:1])[:300]}"
            raise EngineRefused(self.url, "/generate", what) from error

    def update_weights_from_disk(
        self,
        path: Path,
        version: int,
        *,
        abort_all_requests: bool = False,
        expect_hash: str | None = None,
        seconds: float | None = None,
    ) -> WeightUpdate:
        """Make the engine load a version from a folder that it can read. Not repeated once it was sent.

        What the old weights left in the cache is dropped, unless requests hold it through a pause ``in_place``.

        Args:
            expect_hash: the embedded engine compares it with what it loaded. Of SGLang, which has no hash, some weights are
                compared with the folder's.

        Raises:
            EngineRefused: the engine could not load it, or holds something else; its message says why.
        """
        body: dict[str, Any] = {
            "model_path": str(path),
            "weight_version": str(version),
            # SGLang before 0.5.21 dies of a cache that it cannot flush; asked afterwards it only says no.
            "flush_cache": False,
            "abort_all_requests": abort_all_requests,
        }
        if expect_hash is not None:
            body["expect_hash"] = expect_hash
        answer = self.ask("POST", "/update_weights_from_disk", body, seconds=seconds, repeat=False)
        if not answer.get("success"):
            raise EngineRefused(self.url, "/update_weights_from_disk", str(answer.get("message")))
        self.flush_cache()
        update = WeightUpdate(str(answer.get("message")), answer.get("hash"))
        self.check_version(version, update)
        if update.weight_hash is None and self.capabilities.weights_by_name:
            check_loaded(self, path)
        return update

    def check_version(self, version: int, update: WeightUpdate) -> None:
        """Raise :class:`EngineRefused` if an engine that gives no hash does not say that it runs this version."""
        if update.weight_hash is None and (said := self.model_info().version) != version:
            what = f"version {version} was loaded, yet the engine says that it runs {said}"
            raise EngineRefused(self.url, "/model_info", what)

    def flush_cache(self) -> bool:
        """Drop the cache of what has ended; returns False where requests run or wait, whose cache stays."""
        try:
            self.ask("POST", "/flush_cache", None)
        except EngineRefused:
            return False
        return True

    def pause(self, mode: Literal["abort", "retract", "in_place"] = "abort") -> None:
        """Hold generation: answer what runs as it stands, send it back to the line, or freeze it with its cache."""
        self.ask("POST", "/pause_generation", {"mode": mode})

    def continue_(self) -> None:
        """Go on after :meth:`pause`."""
        self.ask("POST", "/continue_generation", {})

    def abort(self, rid: str | None = None) -> None:
        """End this client's request of that name, or every request of the engine; they are answered with what they have."""
        if rid is None:
            self.ask("POST", "/abort_request", {"abort_all": True})
            return
        # A server knows a request of several samples by one name a sample; one that has ended already is no error.
        calls = [
            self._call("POST", "/abort_request", {"rid": name}, seconds=self.call_s, repeat=True)
            for name in sample_rids(rid, self._running.get(rid, 0))
        ]
        for future in [asyncio.run_coroutine_threadsafe(call, self._loop) for call in calls]:
            future.result()

    def health(self) -> bool:
        """Whether the engine says that it can serve."""
        try:
            self.ask("GET", "/health", None, seconds=min(self.call_s, CONNECT_S), repeat=False)
        except EngineError:
            return False
        return True

    def model_info(self) -> ModelInfo:
        """What the engine serves now."""
        info = self.ask("GET", "/model_info", None)
        try:
            version = version_number(info["weight_version"], self._initial_version)
            return ModelInfo(str(info["model_path"]), version, info.get("weight_hash"))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRefused(
                self.url, "/model_info", f"an answer that makes no sense ({error!r}): {str(info)[:300]}"
            ) from error

    def loads(self) -> Loads:
        """What the engine is at, summed over its parts."""
        answer = self.ask("GET", "/v1/loads", None)
        try:
            parts = answer["loads"]
            return Loads(
                running=sum(int(part["num_running_reqs"]) for part in parts),
                waiting=sum(int(part["num_waiting_reqs"]) for part in parts),
                token_usage=max(float(part["token_usage"]) for part in parts),
                throughput=sum(float(part["gen_throughput"]) for part in parts),
            )
        except (KeyError, TypeError, ValueError) as error:
            what = f"an answer that makes no sense ({error!r}): {str(answer)[:300]}"
            raise EngineRefused(self.url, "/v1/loads", what) from error

    def release(self, tags: Sequence[Memory] = ("kv_cache", "weights"), *, seconds: float | None = None) -> None:
        """Have the engine let go of memory on its device. Not repeated once it was sent.

        Raises:
            EngineRefused: requests run or wait there, of which SGLang would die.
        """
        try:
            # What loads() says comes late.
            wait_for("its samples to end", lambda: self.flush_cache() or None, seconds=self.call_s)
        except DeadlineExceeded as error:
            raise EngineRefused(self.url, "/release_memory_occupation", f"{error}; pause with mode abort first") from error
        self.ask("POST", "/release_memory_occupation", {"tags": list(tags)}, seconds=seconds, repeat=False)

    def resume(self, tags: Sequence[Memory] = ("weights", "kv_cache"), *, seconds: float | None = None) -> None:
        """Have the engine take memory again that it let go of. Weights are undefined then until a version is loaded."""
        self.ask("POST", "/resume_memory_occupation", {"tags": list(tags)}, seconds=seconds, repeat=False)

    def _start(self, body: dict[str, Any], samples: int, seconds: float, name: str) -> Future[list[list[Completion]]]:
        self._running[name] = len(body["input_ids"])
        future = asyncio.run_coroutine_threadsafe(self._generate(body, samples, seconds), self._loop)
        future.add_done_callback(lambda _: self._running.pop(name, None))
        return future

    @staticmethod
    def _wait(future: Future[list[list[Completion]]]) -> list[list[Completion]]:
        try:
            return future.result()
        finally:
            # A Ctrl-C while waiting must not leave the server at work for nobody.
            future.cancel()

    async def _generate(self, body: dict[str, Any], samples: int, seconds: float) -> list[list[Completion]]:
        answers = await self._call("POST", "/generate", body, seconds=seconds, repeat=True)
        # SGLang answers one prompt in a list with a list too.
        listed = answers if isinstance(answers, list) else [answers]
        if len(listed) != len(body["input_ids"]):
            raise EngineRefused(self.url, "/generate", f"{len(listed)} completions for {len(body['input_ids'])} asked for")
        try:
            flat = [Completion.from_json(answer, initial_version=self._initial_version) for answer in listed]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"an answer that makes no sense ({error!r}): {str(listed[0])[:300]}"
            raise EngineRefused(self.url, "/generate", what) from error
        return [flat[i : i + samples] for i in range(0, len(flat), samples)]
