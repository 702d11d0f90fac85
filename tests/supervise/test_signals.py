"""Real processes that are signalled at the worst time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpcrl.run.stop import wait_for
from hpcrl.supervise.children import Child

LISTENER = """
import sys, time
print("begun", flush=True)
time.sleep(0.3)
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.signals import hear
stop = StopFlag()
hear(stop, service=sys.argv[1] == "service")
print("hears", flush=True)
print("stopped" if stop.sleep(1.0) else "goes on", flush=True)
"""


def start(folder: Path, what: str) -> Child:
    (folder / "listener.py").write_text(LISTENER)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])])
    return Child.start(
        "a.0", "listener", lambda _: what, env={**os.environ, "PYTHONPATH": path}, log=folder / "log", service=False
    )


def said(folder: Path) -> list[str]:
    return (folder / "log").read_text().split("\n")[:-1]


@pytest.mark.parametrize("word", ["begun", "hears"])
@pytest.mark.parametrize(
    ("what", "number", "end"),
    [
        ("worker", signal.SIGTERM, "stopped"),
        ("worker", signal.SIGUSR1, "stopped"),
        ("worker", signal.SIGUSR2, "stopped"),
        ("service", signal.SIGTERM, "goes on"),
        ("service", signal.SIGUSR1, "goes on"),
        ("service", signal.SIGUSR2, "stopped"),
    ],
)
def test_signals_are_heard_from_the_first_moment_on(tmp_path: Path, word: str, what: str, number: signal.Signals, end: str):
    child = start(tmp_path, what)
    wait_for(f"it to say {word}", lambda: word in said(tmp_path) or None, seconds=20)
    os.kill(child.popen.pid, number)
    assert child.popen.wait(20) == 0
    assert said(tmp_path) == ["begun", "hears", end]


def test_the_starter_itself_goes_on_hearing(tmp_path: Path):
    start(tmp_path, "worker").kill()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
