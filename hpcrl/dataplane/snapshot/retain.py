"""Which snapshots of a run are kept."""

from __future__ import annotations

from pathlib import Path

from hpcrl.dataplane.snapshot.manifest import MANIFEST, committed
from hpcrl.run.directory import RunDirectory
from hpcrl.run.disk import remove_marked


def retain(run: RunDirectory, keep: int = 2) -> list[str]:
    """Remove all but the newest ``keep`` committed snapshots of a run, of all its attempts, and what was left unfinished.

    Called after a commit; a folder of a number above the newest committed one is being written and stays.

    Returns:
        A sentence for each folder that could not be removed; the next call tries again.

    Raises:
        ValueError: ``keep`` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least the newest snapshot must stay")
    whole = committed(run)
    if not whole:
        return []
    newest = _order(whole[0])
    kept = set(whole[:keep])
    folders = [path for path in run.path.glob("attempt_*/snapshots/[0-9]*") if path.name.isdigit()]
    gone = [path for path in folders if path not in kept and _order(path) < newest]
    problems = []
    for path in sorted([*gone, *run.path.glob("attempt_*/snapshots/.*.old")]):
        try:
            remove_marked(path, MANIFEST)
        except OSError as error:
            problems.append(f"snapshot {path} is to go and cannot be removed: {error}")
    return problems


def _order(folder: Path) -> tuple[int, int]:
    """Attempt and number."""
    return int(folder.parent.parent.name.removeprefix("attempt_")), int(folder.name)
