"""A server of SGLang: started, watched until it is ready, ended with all that it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from hpcrl.engines.calls import EngineCalls, EngineError
from hpcrl.engines.sglang import launch
from hpcrl.engines.sglang.command import Place, arguments, environment
from hpcrl.engines.sglang.interpreter import interpreter
from hpcrl.engines.sglang.kernels import kernel_folder
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.engines.sglang.words import last_words
from hpcrl.run.addresses import is_free
from hpcrl.run.errors import RoleFailed, RoleLost, host
from hpcrl.run.stop import StopFlag, back_off, wait_for

# A server that is killed leaves its port soon after.
_PORT_S = 30.0
_LOOK_S = 5.0
_STOP_S = 5.0


class SglangServer:
    """One server. It ends when this process ends, however that ends.

    Args:
        log: file that its output goes to.
        temporary: folder for its temporary files, which it does not remove; with a short name, as sockets are among them.
    """

    def __init__(self, sglang: Sglang, place: Place, *, key: str, log: Path, temporary: Path) -> None:
        self._sglang, self._place, self._key, self._log, self._temporary = sglang, place, key, log, temporary
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        # Files of shared memory, which it leaves behind when it is killed.
        self._shared: set[str] = set()
        self.url = place.url

    def start(self, stop: StopFlag | None = None, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Start it and wait until it can serve; returns the URL.

        Args:
            meanwhile: called again and again until then; what it raises ends the server.

        Raises:
            RoleFailed: there is no such interpreter, its port is taken, it ended, or it was not ready in time; the end of its
                log is told.
            Stopped: asked to stop meanwhile; it is ended.
        """
        place = self._place
        port = f"port {place.port} of {place.address}"
        wait_for(f"{port} to be free", lambda: is_free(place.address, place.port) or None, seconds=_PORT_S, stop=stop)
        python = shutil.which(interpreter(self._sglang)) or interpreter(self._sglang)
        self._temporary.mkdir(parents=True, exist_ok=True)
        environ = environment(
            os.environ,
            self._sglang,
            place,
            key=self._key,
            kernels=kernel_folder(self._sglang.kernels),
            temporary=self._temporary,
        )
        try:
            with open(self._log, "ab") as output:
                # In the process group of this process, so that whoever ends that ends the server too.
                self._process = subprocess.Popen(
                    [python, launch.__file__, *arguments(self._sglang, place)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environ,
                )
        except OSError as error:
            raise RoleFailed(
                f"{host()} cannot start {python} for SGLang: {error.strerror}",
                do="set sglang.python to one that every node has",
            ) from error
        try:
            with EngineCalls(self.url, key=self._key, call_s=_LOOK_S) as calls:
                wait_for(
                    f"SGLang at {self.url} to be ready (its log: {self._log})",
                    lambda: self._look(calls, meanwhile),
                    seconds=self._sglang.start_s,
                    stop=stop,
                    pauses=back_off(0.1, 0.5),
                )
        except BaseException:
            self.stop()
            raise
        self._ready = True
        for one in _below(self._process):
            with suppress(psutil.Error):
                self._shared |= {file.path for file in one.memory_maps() if file.path.startswith("/dev/shm/")}
        return self.url

    def check(self) -> None:
        """Raise if the server has ended: :class:`RoleLost` if it had been ready, else :class:`RoleFailed`."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        what = f"SGLang on {host()} at {self.url} {how}; its last lines:\n{last_words(self._log)}\n"
        if self._ready:
            raise RoleLost(
                what, read=self._log, do="where it was out of memory, lower sglang.memory_fraction or sglang.max_running"
            )
        raise RoleFailed(what, read=self._log, do="mend what it says; sglang.arguments of the recipe are passed on as they are")

    def stop(self) -> None:
        """End the server and everything that it started. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        started = _below(process)
        # Asked to end it would finish its requests first, or hang where a GPU hangs.
        process.kill()
        process.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in started:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(number)
            # A helper of multiprocessing, which heeds no SIGTERM, first removes what the others left in shared memory.
            _, started = psutil.wait_procs(started, timeout=_STOP_S)
        for file in self._shared:
            with suppress(OSError):
                os.unlink(file)

    def _look(self, calls: EngineCalls, meanwhile: Callable[[], None]) -> bool | None:
        self.check()
        meanwhile()
        try:
            calls.ask("GET", "/health", None, repeat=False)
        except EngineError:
            return None
        return True


def _below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What a process started, and what that started."""
    try:
        started: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return started
