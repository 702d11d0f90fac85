"""The end of a log, for an error message."""

from __future__ import annotations

from pathlib import Path


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log file, for an error message; reads at most its last 64 KiB."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(log cannot be read: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
