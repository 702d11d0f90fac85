"""Where a run goes on: what the newest save has trained. Light, so that a role without torch can read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cursor:
    """What was trained when a save was made.

    Attributes:
        step: training steps done.
        prompts: every prompt of a lower number was trained.
        beyond: further prompts that were trained ahead of their turn.
    """

    step: int = 0
    prompts: int = 0
    beyond: frozenset[int] = frozenset()

    def to_record(self) -> dict[str, Any]:
        """JSON-like, for the save's record."""
        return {"step": self.step, "prompts": self.prompts, "beyond": sorted(self.beyond)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Cursor:
        """Back from :meth:`to_record`; the start of a run from None."""
        if record is None:
            return cls()
        return cls(record["step"], record["prompts"], frozenset(record["beyond"]))


def read_cursor(folder: Path) -> Cursor:
    """The cursor of the newest whole save; the start of a run if there is none."""
    # Names have the step in a fixed width, so the last one is the newest.
    records = sorted(folder.glob("step-*/record.json"))
    return Cursor.from_record(json.loads(records[-1].read_text())["caller"]) if records else Cursor()
