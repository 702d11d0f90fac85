"""What a server of SGLang said last that tells why it ended."""

from __future__ import annotations

from pathlib import Path

from hpcrl.run.tail import tail

_TRACEBACK = "Traceback (most recent call last)"
_LOOK, _MOST = 400, 30
# Its compilers count at the end what they did not free; servers that end well do so too.
_NOISE = ("nanobind: ", " - leaked ", " - ... skipped", "See https://nanobind")


def last_words(log: Path) -> str:
    """The last traceback in the end of a log, or its last lines."""
    lines = [line for line in tail(log, _LOOK).splitlines() if line.strip() and not line.startswith(_NOISE)]
    begins = [index for index, line in enumerate(lines) if _TRACEBACK in line]
    if not begins:
        return "\n".join(lines[-_MOST:])
    found = lines[begins[-1] :]
    # The first lines of a long one say where it came from, the last ones what it was.
    return "\n".join(found if len(found) <= _MOST else [found[0], "…", *found[2 - _MOST :]])
