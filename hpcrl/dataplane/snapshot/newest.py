"""Which snapshot of the queue is the newest. Light: a manifest is read, and no HDF5 library brought."""

from __future__ import annotations

from hpcrl.run.directory import RunDirectory
from hpcrl.run.disk import FileDamaged
from hpcrl.run.sealed import read_sealed


def newest_manifest(run: RunDirectory) -> tuple[int, int, str] | None:
    """Attempt, number and checksum of the newest committed snapshot of a run whose manifest is whole; None if none is."""
    for attempt in reversed(run.attempts()):
        for path in sorted((attempt.path / "snapshots").glob("[0-9]*/manifest.json"), reverse=True):
            try:
                digest: str = read_sealed(path)["digest"]
            except FileDamaged:
                # Or retention was faster.
                continue
            return attempt.number, int(path.parent.name), digest
    return None
