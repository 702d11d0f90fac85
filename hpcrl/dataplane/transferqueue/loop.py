"""An asyncio loop in a thread of its own, whose calls end within a deadline; TransferQueue's own calls have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hpcrl.run.stop import STOPPED_S, StopFlag

T = TypeVar("T")
_GRACE_S, _LOOK_S = 5.0, 0.25


class LoopThread:
    """Runs coroutines for any thread of the process.

    Attributes:
        stuck: a call could not even be cancelled; the loop serves no more.
    """

    def __init__(self, name: str) -> None:
        self.stuck = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin it; it goes on until :meth:`close`.

        Raises:
            RuntimeError: the loop is closed.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, action: Callable[[], Coroutine[Any, Any, T]], seconds: float, stop: StopFlag | None = None) -> T:
        """The result of the coroutine that ``action`` makes.

        Args:
            stop: once it is set, :data:`~hpcrl.run.stop.STOPPED_S` is the most that is waited.

        Raises:
            TimeoutError: it did not end in time and was cancelled.
            ConnectionAbortedError: :meth:`close` cancelled it.
        """

        async def limited() -> T:
            return await asyncio.wait_for(action(), seconds)

        try:
            future = self.submit(limited())
        except RuntimeError:
            raise ConnectionAbortedError("the connection is closed") from None
        until, hurried = time.monotonic() + seconds + _GRACE_S, False
        try:
            while not future.done():
                concurrent.futures.wait([future], min(_LOOK_S, max(0.0, until - time.monotonic())))
                if stop is not None and stop.is_set() and not hurried:
                    until, hurried = min(until, time.monotonic() + STOPPED_S), True
                if not future.done() and time.monotonic() >= until:
                    self.stuck = self.stuck or not hurried
                    future.cancel()
                    raise TimeoutError
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionAbortedError("the connection was closed by another thread") from None

    def close(self) -> bool:
        """Cancel what runs and end the thread; returns whether it ended."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
            self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            return False
        if not self._loop.is_closed():
            self._loop.close()
        return True

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()
