"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of the doctor.

    Attributes:
        status: ``fail`` hpcrl does not work like this; ``warn`` something of it may not; ``ok`` as it should be, or
            absent and not needed here.
        do: what to do about it; empty for ``ok``.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    what: str
    do: str = ""
