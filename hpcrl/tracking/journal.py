"""The run's own journal: JSON lines, one file and one writer for each process.

Every line has ``t`` (Unix time [s]), ``kind``, and that kind's fields. Kinds that the framework reads back:

``phase``     heartbeat of a role: name, step.
``step``      one training step, by the trainer: step, version, reward, loss, grad_norm, tokens, step_s, …
``outcomes``  rewards given, by a reward role: right, wrong, unparseable, timeout, exception.
``served``    an engine switched weights: version, load_s, hash.
``sampled``   prompts answered, by a rollout role: prompts, samples, tokens, seconds.
``metrics``   any other figures against a step.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Appends lines to one file. A full disk never stops the caller: lines that cannot be written are counted.

    Attributes:
        lost: lines that could not be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - lives as long as the process
        self._lock = threading.Lock()
        self.lost = 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. Fields are JSON-like; numbers that are not finite are written as null."""
        record = {"t": round(time.time(), 3), "kind": kind, **fields}
        line = json.dumps(_finite(record), default=float, separators=(",", ":"))
        with self._lock:
            try:
                self._file.write(line + "\n")
            except OSError:
                self.lost += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JournalReader:
    """Follows every journal of a folder; each call of :meth:`read` gives what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (writer, record) for every complete line not given before."""
        for path in sorted(self._folder.glob("*.jsonl")):
            start = self._offsets.get(path, 0)
            with open(path, "rb") as file:
                file.seek(start)
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._offsets[path] = start + end
            for line in data[:end].splitlines():
                yield path.stem, json.loads(line)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
