"""Calls of an engine's routes over HTTP: deadlines, repeats, and what went wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Self

import aiohttp

from hpcrl.run.errors import HpcrlError
from hpcrl.run.stop import back_off

# Statuses that say "not now" before any work was done.
_RETRY_STATUSES = (429, 502, 503)
CONNECT_S = 10.0


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


class EngineCalls:
    """One engine's routes. Safe from any thread; close it when done.

    Args:
        url: ``http://host:port``.
        key: the run's key, sent as ``Authorization: Bearer``.
        call_s: deadline of the calls that steer the engine [s].
    """

    def __init__(self, url: str, *, key: str | None = None, call_s: float = 60.0) -> None:
        self.url, self.call_s = url.rstrip("/"), call_s
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(
        self, method: str, route: str, body: dict[str, Any] | None, *, seconds: float | None = None, repeat: bool = True
    ) -> Any:
        """Call a route with a JSON body; returns the answer's JSON, or its text where it is none.

        Args:
            repeat: calling it twice does no harm.

        Raises:
            EngineRefused, EngineUnavailable: see there.
        """
        call = self._call(method, route, body, seconds=self.call_s if seconds is None else seconds, repeat=repeat)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

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
        timeout = aiohttp.ClientTimeout(total=max(0.001, seconds), sock_connect=CONNECT_S)
        async with self._session.request(method, self.url + route, json=body, timeout=timeout) as response:
            text = await response.text()
            if response.status >= 500 or response.status in _RETRY_STATUSES:
                raise EngineUnavailable(self.url, route, f"HTTP {response.status}: {_message(text)}", status=response.status)
            if response.status >= 400:
                raise EngineRefused(self.url, route, f"HTTP {response.status}: {_message(text)}", status=response.status)
            return await response.json() if response.content_type == "application/json" else text


def _message(text: str) -> str:
    return " ".join(text.split())[:500] or "(no text)"
