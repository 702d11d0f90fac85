"""Runs of the tiny recipe: through ``hpcrl`` in a process of its own, or called in this one where no process is the point."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.checkpoint.state.manifest import newest
from hpcrl.run.directory import RunDirectory
from hpcrl.run.stop import wait_for
from hpcrl.tracking.journal import JournalReader

RECIPE = Path(__file__).with_name("tiny_recipe.py")
PROMPTS = 10
# Figures of a step that depend on nothing but what was computed.
COMPUTED = ("step", "version", "reward", "reward_std", "loss", "grad_norm", "kl", "entropy", "samples_kept", "version_lag_max")


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its exit code, what it printed, its directory."""

    code: int
    output: str
    path: Path

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Journal records of every attempt in order."""
        attempts = RunDirectory.open(self.path).attempts()
        found = [r for attempt in attempts for _, r in JournalReader(attempt.journal).read() if r["kind"] == kind]
        return sorted(found, key=lambda record: record["t"])

    def steps(self) -> list[dict[str, Any]]:
        return self.records("step")

    def computed(self) -> list[dict[str, Any]]:
        return [{name: step[name] for name in COMPUTED} for step in self.steps()]

    def published(self) -> dict[int, str]:
        """Hash of each version as the trainer left it."""
        markers = [json.loads(path.read_text()) for path in self.path.glob("weights/v*/version.json")]
        return {marker["version"]: marker["hash"] for marker in markers}

    def cursor(self) -> dict[str, Any]:
        """What the newest save says was trained."""
        saved = newest(self.path / "state")
        assert saved is not None
        return saved.cursor


class Launcher:
    """Starts the tiny recipe."""

    recipe = RECIPE

    def __init__(self, model: Path, data: Path) -> None:
        self.model, self.data = model, data

    def arguments(self, run: Path, *options: str, recipe: Path = RECIPE, **sets: Any) -> list[str]:
        given = {"model": self.model, "data": self.data, **sets}
        pairs = [f"{name.replace('__', '.')}={value}" for name, value in given.items() if value != ""]
        return ["run", str(recipe), "--run-dir", str(run), *options, *(x for pair in pairs for x in ("--set", pair))]

    def call(self, *arguments: str) -> tuple[int, str]:
        """The command in this process; exit code and everything printed.

        A run in this process has no tracker, which would be a process that imports MLflow: runs in processes have one.
        """
        from hpcrl.cli.main import main
        from hpcrl.launch import session

        printed, before = io.StringIO(), sys.argv
        sys.argv = ["hpcrl", *arguments]
        try:
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
                pytest.MonkeyPatch.context() as patch,
            ):
                patch.setattr(session, "tracker", lambda *_: contextlib.nullcontext())
                main()
        except SystemExit as ended:
            return int(ended.code or 0), printed.getvalue()
        finally:
            sys.argv = before
        return 0, printed.getvalue()

    def in_process(self, run: Path, **sets: Any) -> Ended:
        """The run in threads of this process."""
        code, output = self.call(*self.arguments(run, "--in-process", **sets))
        return Ended(code, output, run)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command as a person's shell starts it."""
        command = [sys.executable, "-m", "hpcrl.cli.main", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, process: subprocess.Popen[str], run: Path, seconds: float = 150) -> Ended:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"not ended after {seconds} s:\n{output}")
        return Ended(process.returncode, output, run)

    def run(self, run: Path, **sets: Any) -> Ended:
        """The run in processes, to its end."""
        return self.finish(self.start(*self.arguments(run, **sets)), run)


@pytest.fixture(scope="session")
def launcher(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    data = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"say {number}", "answer": str(number)}) + "\n" for number in range(PROMPTS)))
    return Launcher(tiny_model, data)


@pytest.fixture
def nothing_left(shared_memory_left: Callable[[str], set[str]]) -> Callable[[Ended], None]:
    """Asserts that a run left no process, port or shared memory behind."""

    def check(ended: Ended) -> None:
        lines = [(p.pid, " ".join(p.info["cmdline"] or [])) for p in psutil.process_iter(["cmdline"])]
        assert [line for line in lines if str(ended.path) in line[1]] == []
        for plan in ended.path.glob("attempt_*/plan.json"):
            first, end = json.loads(plan.read_text())["ports"]
            taken = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
            assert not taken & set(range(first, end))
        run_id = RunDirectory.open(ended.path).run_id
        wait_for("shared memory to be as before", lambda: True if not shared_memory_left(run_id) else None, seconds=10)

    return check
