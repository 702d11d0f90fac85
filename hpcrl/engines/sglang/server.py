"""A server of SGLang: started, watched until it is ready, ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hpcrl.engines.client import EngineClient
from hpcrl.engines.sglang import launch
from hpcrl.engines.sglang.command import Place, arguments, environment
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.run.errors import CheckFailed, RoleFailed, host
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.supervise.children import tail

_STOP_S = 10.0


class SglangServer:
    """One server.

    Args:
        log: file that its output goes to.
        threads: of a server on the CPU.
    """

    def __init__(self, sglang: Sglang, place: Place, *, key: str, log: Path, threads: int = 1) -> None:
        self._sglang, self._place, self._key, self._log, self._threads = sglang, place, key, log, threads
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        shown = f"[{self._place.address}]" if ":" in self._place.address else self._place.address
        return f"http://{shown}:{self._place.port}"

    def start(self, stop: StopFlag | None = None) -> str:
        """Start it and wait until it can serve; returns the URL.

        Raises:
            CheckFailed: there is no such interpreter.
            RoleFailed: it ended, or was not ready in time; the end of its log is told.
            Stopped: asked to stop meanwhile; it is ended.
        """
        python = self._sglang.python or sys.executable
        try:
            with open(self._log, "ab") as output:
                self._process = subprocess.Popen(
                    [python, launch.__file__, *arguments(self._sglang, self._place)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment(dict(os.environ), self._sglang, self._place, key=self._key, threads=self._threads),
                    start_new_session=True,
                )
        except OSError as error:
            raise CheckFailed([f"{host()} cannot start {python} for SGLang: {error.strerror}; set `python`"]) from error
        try:
            with EngineClient(self.url, key=self._key, call_s=5.0) as client:
                wait_for(f"SGLang at {self.url} to be ready", lambda: self._ready(client), seconds=self._sglang.start_s, stop=stop)
        except BaseException:
            self.stop()
            raise
        return self.url

    def _ready(self, client: EngineClient) -> bool | None:
        self.check()
        return client.health() or None

    def check(self) -> None:
        """Raise :class:`RoleFailed` if the server has ended."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise RoleFailed(
                f"SGLang on {host()} at {self.url} ended with code {code}; its last lines:\n{tail(self._log)}",
                read=self._log,
                do="mend what it says; `sglang.arguments` of the recipe are passed on as they are",
            )

    def stop(self) -> None:
        """End the server and everything that it started. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        number, deadline = signal.SIGTERM, time.monotonic() + _STOP_S
        try:
            while True:
                os.killpg(process.pid, number)
                if number == signal.SIGKILL:
                    break
                process.poll()
                time.sleep(0.05)
                number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
        except ProcessLookupError:
            pass
        process.wait()
