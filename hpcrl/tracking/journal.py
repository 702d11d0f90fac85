"""The run's own journal: JSON lines, one file and one writer for each process.

Every line has ``t`` (Unix time [s]), ``kind``, and that kind's fields. Steps count from 1 here, as people count: step n makes
version n out of batch n - 1. Kinds that the framework reads back:

``phase``     heartbeat of a role: name, step.
``step``      one training step, by the trainer: step, version, prompts (numbers), reward, loss, grad_norm, tokens, step_s, …
``outcomes``  rewards given, by a reward role: right, wrong, unparseable, timeout, exception.
``served``    an engine switched weights: version, load_s, hash.
``sampled``   prompts answered, by a rollout role: prompts, samples, tokens, seconds.
``metrics``   any other figures against a step.

Written by an ignitor:

``restart``   a process that was killed was started again in place: process, signal, incarnation, pid.

Written by the supervisor of a Slurm job:

``job``       a job began the attempt: job, restarts.
``launch``    a step was started: component, nodes, first slot, tries.
``drain``     all were asked to save and end: reason, seconds left.
``lost``      Slurm took nodes away: nodes.
``verdict``   what followed the attempt: what (done, failed, relaunch, requeue, leave, successor, cancelled, stuck), reason.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrl.run.directory import RunDirectory


class Journal:
    """Appends lines to one file. A full disk never stops the caller: lines that cannot be written are counted.

    Attributes:
        lost: lines that could not be written.
    """

    def __init__(self, path: Path) -> None:
        # Unbuffered: what a full disk refused must not stay in a buffer and come out later, twice or in the wrong place.
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - lives as long as the process
        self._lock = threading.Lock()
        self._torn = _ends_torn(self._file.fileno())
        self.lost = 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. Fields are JSON-like or have ``tolist``; numbers that are not finite are written as null."""
        record = {"t": round(time.time(), 3), "kind": kind, **fields}
        line = json.dumps(_finite(record), default=_plain, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._file.closed:
                self.lost += 1
                return
            data = b"\n" + line if self._torn else line
            try:
                written = self._file.write(data) or 0
            except OSError:
                self.lost += 1
                return
            if written < len(data):
                self.lost += 1
            # A line cut short by a full disk is ended by the next one's leading newline, so it spoils only itself.
            self._torn = written < len(data) and (self._torn or written > 0)

    def close(self) -> None:
        """Close the file; later lines are counted as lost."""
        with self._lock:
            self._file.close()


class JournalReader:
    """Follows every journal of a folder; each call of :meth:`read` gives what is new.

    Attributes:
        torn: lines that were no JSON object: cut short by a full disk or a crash. They are left out.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.torn = 0

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (writer, record) for every complete line not given before."""
        for path in sorted(self._folder.glob("*.jsonl")):
            start = self._offsets.get(path, 0)
            if path.stat().st_size <= start:
                continue
            with open(path, "rb") as file:
                file.seek(start)
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._offsets[path] = start + end
            for line in data[:end].splitlines():
                record = _parse(line)
                if record is not None:
                    yield path.stem, record
                elif line.strip():
                    self.torn += 1


class RunJournalReader:
    """Follows the journals of every attempt of a run, oldest attempt first, and of attempts that begin later."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._readers: dict[int, JournalReader] = {}

    def read(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield (attempt number, writer, record) for every complete line not given before."""
        for attempt in self._run.attempts():
            reader = self._readers.setdefault(attempt.number, JournalReader(attempt.journal))
            for writer, record in reader.read():
                yield attempt.number, writer, record


def _ends_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    return _finite(value.tolist() if hasattr(value, "tolist") else float(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
