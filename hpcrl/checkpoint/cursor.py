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
        """JSON-like, for the save's manifest."""
        return {"step": self.step, "prompts": self.prompts, "beyond": sorted(self.beyond)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Cursor:
        """Back from :meth:`to_record`; the start of a run from None."""
        if not record:
            return cls()
        return cls(record["step"], record["prompts"], frozenset(record["beyond"]))


def read_cursor(folder: Path) -> Cursor:
    """The cursor of the newest committed save; the start of a run if there is none.

    Args:
        folder: ``RUN/state``.

    Raises:
        StateError: the newest save is of another run, or of a later version of hpcrl.
    """
    # Recipes import this module, and most never ask.
    from hpcrl.checkpoint.state.manifest import newest

    manifest = newest(folder, run_of(folder))
    return Cursor() if manifest is None else Cursor.from_record(manifest.cursor)


def run_of(folder: Path) -> str | None:
    """Id of the run whose saves lie in ``RUN/state``; None where there is no run around it."""
    try:
        run_id: str = json.loads((folder.parent / "run.json").read_text())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_id
