"""An asyncio loop in a thread of its own, whose calls end within a deadline; TransferQueue's own calls have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_GRACE_S = 5.0


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

    def run(self, action: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """The result of the coroutine that ``action`` makes.

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
        try:
            return future.result(seconds + _GRACE_S)
        except concurrent.futures.TimeoutError:
            self.stuck = self.stuck or not future.done()
            raise TimeoutError from None
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
