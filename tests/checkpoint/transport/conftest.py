"""A trainer's rank in another process, which publishes and sends what it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 60.0


class TrainerProcess:
    """Runs ``trainer_process.py``; each order is a line, and so is each answer."""

    def __init__(self, environment: dict[str, str] | None = None, **settings: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("trainer_process.py")), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def order(self, what: str, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the trainer's process ended with {self._process.wait(WAIT_S)}"
        return json.loads(line)

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        self.order(what, **more)
        return self.answer()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)

    def ended(self) -> int:
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start_trainer(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[..., TrainerProcess]]:
    """Starts one for the tiny model, publishing to ``tmp_path/weights``."""
    started: list[TrainerProcess] = []

    def start(environment: dict[str, str] | None = None, **settings: Any) -> TrainerProcess:
        defaults = {"model": str(tiny_model), "weights": str(tmp_path / "weights"), "memory": str(tmp_path / "memory")}
        started.append(TrainerProcess(environment, **defaults, **settings))
        return started[-1]

    yield start
    for trainer in started:
        trainer.close()


@pytest.fixture
def free_port() -> Callable[[], int]:
    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find
