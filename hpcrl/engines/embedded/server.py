"""The embedded engine as an HTTP service in threads of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future

from aiohttp import web

from hpcrl.engines.embedded.engine import EmbeddedEngine
from hpcrl.engines.embedded.routes import application
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.run.addresses import family_of, host_part
from hpcrl.run.errors import CheckFailed, host

_SHUTDOWN_S = 1.0


class EmbeddedServer:
    """Serves one engine.

    Args:
        address: address of this host to listen at.
        port: 0 takes a free one.
        api_key: asked for as ``Authorization: Bearer``; None asks for nothing.
    """

    def __init__(
        self, settings: EngineSettings, *, address: str = "127.0.0.1", port: int = 0, api_key: str | None = None
    ) -> None:
        self._settings, self._address, self._port, self._api_key = settings, address, port, api_key
        self._engine: EmbeddedEngine | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def engine(self) -> EmbeddedEngine:
        """The engine; only while the server is started."""
        if self._engine is None:
            raise RuntimeError("the server is not started")
        return self._engine

    def start(self) -> str:
        """Bind the port, load the model, listen; returns the URL.

        Raises:
            CheckFailed: the port is taken, or the model cannot be loaded; nothing is left behind.
        """
        listener = socket.socket(family_of(self._address), socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._address, self._port))
            self._engine = EmbeddedEngine(self._settings)
        except OSError as error:
            listener.close()
            raise CheckFailed(
                [f"{host()} cannot listen at {self._address}:{self._port}: {error.strerror}; free the port or plan another"]
            ) from error
        except BaseException:
            listener.close()
            raise
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listener, ready), name="embedded-http", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.stop()
            raise
        return f"http://{host_part(self._address)}:{self._port}"

    def stop(self) -> None:
        """Abort what runs, free the port and end the threads. Safe to call twice."""
        if self._engine is not None:
            # First: it answers what waits, so that no handler is left hanging.
            self._engine.stop()
        if self._thread is not None and self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()
        self._thread = self._loop = self._stop = self._engine = None

    def _run(self, listener: socket.socket, ready: Future[None]) -> None:
        try:
            asyncio.run(self._serve(listener, ready))
        finally:
            listener.close()
            # Whatever ended the thread early, start() must not wait for ever.
            if not ready.done():
                ready.set_exception(RuntimeError(f"the HTTP thread of {self._address} ended before it listened"))

    async def _serve(self, listener: socket.socket, ready: Future[None]) -> None:
        runner = web.AppRunner(
            application(self.engine, api_key=self._api_key),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
        )
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await runner.setup()
            await web.SockSite(runner, listener).start()
            self._port = listener.getsockname()[1]
        except (OSError, RuntimeError, ValueError) as error:
            listener.close()
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            await runner.cleanup()
            listener.close()
