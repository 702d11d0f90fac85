"""The last training step of a run, without reading its whole journal: for a table of many runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcrl.run.directory import RunDirectory

TAIL_BYTES = 65_536


def last_step(run: RunDirectory) -> dict[str, Any] | None:
    """The newest ``step`` record near the end of any journal, of the newest attempt that has one; None if there is none."""
    for attempt in reversed(run.attempts()):
        found = [record for path in attempt.journal.glob("*.jsonl") if (record := _last_of(path)) is not None]
        if found:
            return max(found, key=lambda record: float(record.get("t") or 0.0))
    return None


def _last_of(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"kind":"step"' not in line:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("kind") == "step":
            return record
    return None
