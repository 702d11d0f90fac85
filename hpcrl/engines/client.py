"""Client of an inference engine that speaks SGLang's HTTP: a real SGLang server or the embedded engine.

Blocking calls for a role's loop; :meth:`EngineClient.submit` does not block, for work that goes on meanwhile. Every error names
the URL and the route.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from hpcrl.engines.completion import Completion, Sampling, generate_body, sample_rids, version_number
from hpcrl.run.errors import HpcrlError
from hpcrl.run.stop import back_off

# Statuses that say "not now" before any work was done.
_RETRY_STATUSES = (429, 502, 503)
_CONNECT_S = 10.0


class EngineError(HpcrlError):
    """A call to an engine failed.

    Attributes:
        status: HTTP status of the answer; None if there was none.
    """

    def __init__(self, url: str, route: str, what: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(f"{url}{route}: {what}")


class EngineUnavailable(EngineError):
    """The engine cannot be reached, gave no answer within the deadline, or says that it cannot serve now."""


class EngineRefused(EngineError):
    """The engine answered that the request is wrong; asking again would not help."""


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


class EngineClient:
    """One engine. Safe from any thread; close it when done.

    Args:
        url: ``http://host:port``.
        key: the run's key, sent as ``Authorization: Bearer``.
        initial_version: policy version of the weights that the engine started with.
        call_s: deadline of the calls that steer the engine [s].
    """

    def __init__(self, url: str, *, key: str | None = None, initial_version: int = 0, call_s: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self._initial_version, self._call_s = initial_version, call_s
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Samples of each request under way, by its name.
        self._running: dict[str, int] = {}
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        body = generate_body(prompts, sampling, samples, seeds, name)
        self._running[name] = len(body["input_ids"])
        future = asyncio.run_coroutine_threadsafe(self._generate(body, samples, seconds), self._loop)
        future.add_done_callback(lambda _: self._running.pop(name, None))
        return future

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
        future = self.submit(prompts, sampling, samples=samples, seeds=seeds, seconds=seconds, rid=rid)
        try:
            return future.result()
        finally:
            # A Ctrl-C while waiting must not leave the server at work for nobody.
            future.cancel()

    def update_weights_from_disk(
        self,
        path: Path,
        version: int,
        *,
        flush_cache: bool = True,
        abort_all_requests: bool = False,
        expect_hash: str | None = None,
        seconds: float | None = None,
    ) -> WeightUpdate:
        """Make the engine load a version from a folder that it can read. Not repeated once it was sent.

        Args:
            flush_cache: must be False while requests are paused ``in_place``.
            expect_hash: the embedded engine compares it with what it loaded; SGLang ignores it.

        Raises:
            EngineRefused: the engine could not load it; its message says why.
        """
        body: dict[str, Any] = {
            "model_path": str(path),
            "weight_version": str(version),
            "flush_cache": flush_cache,
            "abort_all_requests": abort_all_requests,
        }
        if expect_hash is not None:
            body["expect_hash"] = expect_hash
        answer = self.ask("POST", "/update_weights_from_disk", body, seconds=seconds, repeat=False)
        if not answer.get("success"):
            raise EngineRefused(self.url, "/update_weights_from_disk", str(answer.get("message")))
        return WeightUpdate(str(answer.get("message")), answer.get("hash"))

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
            self._call("POST", "/abort_request", {"rid": name}, seconds=self._call_s, repeat=True)
            for name in sample_rids(rid, self._running.get(rid, 0))
        ]
        for future in [asyncio.run_coroutine_threadsafe(call, self._loop) for call in calls]:
            future.result()

    def health(self) -> bool:
        """Whether the engine says that it can serve."""
        try:
            self.ask("GET", "/health", None, seconds=min(self._call_s, _CONNECT_S), repeat=False)
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

    def close(self) -> None:
        """Drop what is open and end the thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

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

    def ask(
        self, method: str, route: str, body: dict[str, Any] | None, *, seconds: float | None = None, repeat: bool = True
    ) -> Any:
        """Call a route with a JSON body; returns the answer's JSON, or its text where it is none.

        Args:
            repeat: calling it twice does no harm.

        Raises:
            EngineRefused, EngineUnavailable: as :meth:`generate`.
        """
        call = self._call(method, route, body, seconds=self._call_s if seconds is None else seconds, repeat=repeat)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _call(self, method: str, route: str, body: dict[str, Any] | None, *, seconds: float, repeat: bool) -> Any:
        """One call within its deadline.

        A connection that never came about is tried again for every route: nothing was sent. One that broke, or an engine that
        says it is busy, only where ``repeat`` says that asking twice does no harm.
        """
        deadline = time.monotonic() + seconds
        pauses = back_off(0.05, 2.0)
        while True:
            left = deadline - time.monotonic()
            try:
                return await self._once(method, route, body, left)
            except TimeoutError as error:
                raise EngineUnavailable(self.url, route, f"no answer within {seconds:g} s") from error
            except aiohttp.ClientError as error:
                failure = EngineUnavailable(self.url, route, f"{type(error).__name__}: {error}")
                again = isinstance(error, aiohttp.ClientConnectorError) or repeat
            except EngineUnavailable as error:
                failure, again = error, repeat and error.status in _RETRY_STATUSES
            pause = next(pauses)
            if not again or time.monotonic() + pause >= deadline:
                raise failure
            await asyncio.sleep(pause)

    async def _once(self, method: str, route: str, body: dict[str, Any] | None, seconds: float) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0))
        timeout = aiohttp.ClientTimeout(total=max(0.001, seconds), sock_connect=_CONNECT_S)
        async with self._session.request(method, self.url + route, json=body, timeout=timeout) as response:
            text = await response.text()
            if response.status >= 500 or response.status in _RETRY_STATUSES:
                raise EngineUnavailable(self.url, route, f"HTTP {response.status}: {_message(text)}", status=response.status)
            if response.status >= 400:
                raise EngineRefused(self.url, route, f"HTTP {response.status}: {_message(text)}", status=response.status)
            return await response.json() if response.content_type == "application/json" else text


def _message(text: str) -> str:
    return " ".join(text.split())[:500] or "(no text)"
