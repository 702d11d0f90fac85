"""Writers that begin as forks: what one imports takes two seconds of a core, and some tests need dozens of them."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NoReturn

import pytest

from hpcrl.run import beside
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.failpoints import VARIABLE, arm
from hpcrl.run.stop import wait_for


class Forked:
    """``python -m MODULE ARGUMENTS`` in place of :class:`subprocess.Popen`, as a fork of this process."""

    def __init__(self, command: Sequence[str], *, stdin: int, env: Mapping[str, str], pass_fds: Sequence[int]) -> None:
        assert (command[:2], stdin) == ([sys.executable, "-m"], subprocess.DEVNULL)
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[2], command[3:], env, pass_fds)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float) -> int:
        try:
            return wait_for("the fork to end", self.poll, seconds=timeout)
        except DeadlineExceeded:
            raise subprocess.TimeoutExpired("fork", timeout) from None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


def _become(module: str, arguments: Sequence[str], env: Mapping[str, str], kept: Sequence[int]) -> NoReturn:
    try:
        gc.freeze()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # A process that holds the other end of its connection never sees the end of whoever started it.
        for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
            try:
                os.close(descriptor)
            except OSError:
                # The one that listed them.
                continue
        os.environ.clear()
        os.environ.update(env)
        arm(env.get(VARIABLE, ""))
        importlib.import_module(module).main(list(arguments))
    except Exception:  # noqa: BLE001 - nothing may go back to the test below
        traceback.print_exc()
    finally:
        os._exit(1)


@pytest.fixture(scope="module")
def forked_writers():
    """Processes beside a trainer are forks; for tests in which a writer's own start is not the point."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(beside, "subprocess", stand_in)
        yield
