"""Time limits as Slurm writes them."""

from __future__ import annotations

import re

_FORM = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


def minutes_of(text: str) -> int:
    """Whole minutes, rounded up: ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``.

    Raises:
        ValueError: another form, or no time at all; says what is wanted.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time limit; write minutes, hours:minutes:seconds or days-hours:minutes:seconds")
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError(f"{text!r} is no time limit; it must be at least a minute")
    return -(-total // 60)
