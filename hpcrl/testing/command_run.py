"""A run through ``hpcrl run`` whose processes are killed: where they are, and when each is back in service."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.cli.evidence import Evidence, examine
from hpcrl.cli.observe import Observer
from hpcrl.run.directory import RunDirectory
from hpcrl.run.stop import back_off, wait_for
from hpcrl.supervise.spares import ALL_READY
from hpcrl.testing.faults import BACK_S, Kill
from hpcrl.tracking.journal import RunJournalReader

_END_S = 240.0


def process_of(run: Path, name: str) -> psutil.Process | None:
    """The living process ``group.rank`` of a run on this machine."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "hpcrl.supervise.process" in command and process.status() != psutil.STATUS_ZOMBIE:
            spec = json.loads(command[-1])
            if spec["run_directory"] == str(run) and f"{spec['identity']['group']}.{spec['identity']['rank']}" == name:
                return process
    return None


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        steps: trained, as the journal of the attempt that trained each last has them.
        lost: prompts that the newest save counts as trained and no step has.
        twice: prompts in two steps, or twice in one.
    """

    steps: int
    lost: int
    twice: int
    evidence: Evidence


class CommandRun:
    """The run of a recipe with the built-in roles.

    Args:
        process: the command.
        path: of the run's directory.
    """

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process, self._path = process, path
        self._reader: RunJournalReader | None = None
        self._fresh: list[tuple[str, dict[str, Any]]] = []
        self.steps: dict[int, list[int]] = {}

    def await_step(self, more: int, seconds: float = BACK_S) -> None:
        """Wait until so many more steps are trained."""
        self._read()
        before = sum(1 for _, record in self._fresh if record["kind"] == "step")

        def poll() -> bool | None:
            return True if sum(1 for _, r in self._fresh if r["kind"] == "step") >= before + more else None

        self._await(f"{more} more steps", poll, seconds)

    def await_spares(self, seconds: float) -> None:
        """Wait until what dies is started again from spares, on a run of one slot."""
        log = RunDirectory.open(self._path).latest().log("ignitor.0")
        self._await("the spares", lambda: ALL_READY in log.read_text() or None, seconds)

    def kill(self, name: str) -> Kill:
        """Kill a process, and wait until it is back in service and a step was trained.

        Back in service is the desk when a question that was asked after its end is answered; the rollout when it waits for its
        gate or asks an engine; the inference when the newest weights are loaded and announced; the reward when it has graded
        samples, counted from when they were there, if that was later than the kill; the trainer, which comes back with all
        others in another attempt, when its weights are loaded and published and it asks for rows.
        """
        victim = self._await(f"{name} to be there", lambda: process_of(self._path, name), BACK_S)
        self._read()
        self._fresh.clear()
        killed = time.time()
        victim.kill()
        group = name.partition(".")[0]
        if group == "queue":
            psutil.wait_procs([victim], timeout=BACK_S)
            with Observer(RunDirectory.open(self._path), call_s=BACK_S) as observer:
                observer.figures()
            away = time.time() - killed
        else:
            away = self._await(f"{name} to be back", lambda: self._away(name, killed), BACK_S)
        again = self._await(f"{name} to be there again", lambda: process_of(self._path, name), BACK_S)
        times = again.cpu_times()
        step = self._await("the next step", lambda: self._first(killed, "trainer.0", "step"), BACK_S)
        return Kill(name, "desk" if group == "queue" else group, away, times.user + times.system, step - killed)

    def finish(self) -> Outcome:
        """Have it save and end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_END_S)
        self._read()
        trained = Counter(prompt for prompts in self.steps.values() for prompt in prompts)
        run = RunDirectory.open(self._path)
        cursor = read_cursor(run.state)
        saved = {*range(cursor.prompts), *cursor.beyond}
        return Outcome(
            steps=len(self.steps),
            lost=len(saved - trained.keys()),
            twice=sum(count - 1 for count in trained.values()),
            evidence=examine(run),
        )

    def _away(self, name: str, killed: float) -> float | None:
        group = name.partition(".")[0]
        if group == "reward":
            graded = self._first(killed, name, "outcomes")
            if graded is None:
                return None
            sampled = [r["t"] for writer, r in self._fresh if r["kind"] == "sampled" and killed < r["t"] <= graded]
            return graded - float(max([killed, *sampled[-1:]]))
        names = {"rollout": ("gate", "generate"), "trainer": ("collect",)}.get(group, ())
        back = self._first(killed, name, "served" if group == "inference" else "phase", names)
        return None if back is None else back - killed

    def _first(self, after: float, writer: str, kind: str, names: tuple[str, ...] = ()) -> float | None:
        # Times in journals are rounded to milliseconds.
        after += 1e-3
        found = (record for who, record in self._fresh if who == writer and record["kind"] == kind and record["t"] > after)
        return next((float(record["t"]) for record in found if not names or record["name"] in names), None)

    def _await(self, what: str, poll: Any, seconds: float) -> Any:
        def look() -> Any:
            if self._process.poll() is not None:
                raise RuntimeError(f"the run ended with {self._process.returncode} while it was waited for {what}")
            self._read()
            return poll()

        return wait_for(what, look, seconds=seconds, pauses=back_off(0.02, 0.1))

    def _read(self) -> None:
        if self._reader is None:
            if not (self._path / "run.json").exists():
                return
            self._reader = RunJournalReader(RunDirectory.open(self._path))
        for _, writer, record in self._reader.read():
            self._fresh.append((writer, record))
            if record["kind"] == "step":
                # What follows a rollback is trained anew.
                self.steps = {step: prompts for step, prompts in self.steps.items() if step < record["step"]}
                self.steps[record["step"]] = record["prompts"]
