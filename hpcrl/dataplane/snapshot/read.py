"""Finds the snapshot that a run goes on with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcrl.dataplane.snapshot.layout import SnapshotError
from hpcrl.dataplane.snapshot.manifest import Damaged, Manifest, check_files, committed, read_manifest
from hpcrl.dataplane.snapshot.merge import Merged, open_merged
from hpcrl.run.directory import RunDirectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot."""

    folder: Path
    manifest: Manifest

    @contextmanager
    def open(self) -> Iterator[Merged]:
        """Its blocks, with the columns of all nodes."""
        with open_merged([self.folder / file.name for file in self.manifest.files]) as merged:
            yield merged


def newest_snapshot(
    run: RunDirectory, attempt: int | None = None, *, tell: Callable[[str], None] = log.warning
) -> Snapshot | None:
    """The newest whole snapshot of a run, by attempt and number and not by the clock; None if none was committed.

    Every file of it is read once, to compare its checksum. One that is damaged is passed over.

    Args:
        attempt: only those of this attempt.
        tell: hears of each that was passed over: which file is damaged and how, and which snapshot is used.

    Raises:
        SnapshotError: there are snapshots and none is whole; or the newest is of another run, or of a layout that is not
            known here, so that what it holds would be lost by going on with an older one.
    """
    passed: list[str] = []
    for folder in committed(run, attempt):
        try:
            manifest = read_manifest(folder, run.run_id)
            check_files(folder, manifest)
        except Damaged as error:
            # One that went away meanwhile was replaced by newer ones, which were looked at before it.
            if folder.exists():
                passed.append(str(error))
            continue
        for why in passed:
            tell(f"{why}; using snapshot {folder} instead")
        return Snapshot(folder, manifest)
    if passed:
        raise SnapshotError(f"run {run.path} has no whole snapshot: {'; '.join(passed)}")
    return None
