"""What commits a snapshot of the queue: one JSON file, written last.

::

    RUN/attempt_2/snapshots/00000007/node-NAME.h5    the rows that lie on a node: see :mod:`hpcrl.dataplane.snapshot.layout`
    RUN/attempt_2/snapshots/00000007/manifest.json   a snapshot without one does not exist
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from hpcrl.dataplane.snapshot.gather import Counts
from hpcrl.dataplane.snapshot.layout import LAYOUT, SavedBlock, SnapshotError, encoded
from hpcrl.dataplane.snapshot.write import Compression, write_rows
from hpcrl.recipe import Stream
from hpcrl.run import disk
from hpcrl.run.digest import digest_file
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.disk import FileDamaged, check_file
from hpcrl.run.errors import DeadlineExceeded, host
from hpcrl.run.sealed import read_sealed, write_sealed
from hpcrl.run.stop import wait_for

MANIFEST = "manifest.json"


class Damaged(SnapshotError):
    """A snapshot is not whole; an earlier one may be."""


class FileRecord(disk.FileRecord, frozen=True):
    """One node's file.

    Attributes:
        streams: what it holds.
    """

    streams: dict[str, Counts]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A committed snapshot.

    Attributes:
        t: Unix time [s]; for people, nothing is decided by it.
        policy_version: newest that was live.
        ledger_seq: number of the ledger's newest operation that the snapshot reflects.
        streams: what the files hold together; a block whose columns lie on two nodes counts in both.
    """

    layout: int
    run_id: str
    attempt: int
    number: int
    t: float
    policy_version: int
    ledger_seq: int
    files: list[FileRecord]
    streams: dict[str, Counts]


def snapshot_folder(attempt: Attempt, number: int) -> Path:
    """Where a snapshot lies. Names have the number in a fixed width, so they sort."""
    return attempt.path / "snapshots" / f"{number:08d}"


def next_number(attempt: Attempt) -> int:
    """For a new snapshot: above every one of the attempt, unfinished ones too."""
    taken = [int(path.name) for path in (attempt.path / "snapshots").glob("[0-9]*") if path.name.isdigit()]
    return max(taken, default=0) + 1


def committed(run: RunDirectory, attempt: int | None = None) -> list[Path]:
    """Folders of the committed snapshots, newest first; of one attempt, or of all."""
    attempts = [one for one in run.attempts() if attempt in (None, one.number)]
    return [
        path.parent
        for one in reversed(attempts)
        for path in sorted((one.path / "snapshots").glob(f"[0-9]*/{MANIFEST}"), reverse=True)
    ]


def write_node(
    attempt: Attempt,
    number: int,
    node: str,
    streams: Sequence[Stream],
    blocks: Iterable[SavedBlock],
    *,
    policy_version: int,
    compression: Compression = "none",
) -> FileRecord:
    """Write what lies on one node; whoever commits needs the record of every node.

    Args:
        blocks: columns that lie on other nodes are left out, theirs have them.

    Raises:
        SnapshotError: as :func:`~hpcrl.dataplane.snapshot.write.write_rows`; earlier snapshots are untouched.
    """
    path = snapshot_folder(attempt, number) / f"node-{encoded(node)}.h5"
    about: dict[str, str | int | float] = {
        "run_id": attempt.run.run_id,
        "attempt": attempt.number,
        "number": number,
        "node": node,
        "t": time.time(),
        "policy_version": policy_version,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        counts = write_rows(path, streams, blocks, about=about, compression=compression)
        return FileRecord(path.name, path.stat().st_size, digest_file(path), counts)
    except OSError as error:
        raise SnapshotError(f"{host()}: {path} cannot be written: {error}") from error


def commit(
    attempt: Attempt,
    number: int,
    files: Sequence[FileRecord],
    *,
    policy_version: int,
    ledger_seq: int,
    visible_s: float = 10.0,
) -> Manifest:
    """Make a snapshot exist, once every node has written its file.

    Args:
        visible_s: how long a file of another node may take to be seen here [s].

    Raises:
        SnapshotError: a file is not there in its size, the number is taken, or the manifest cannot be written.
    """
    folder = snapshot_folder(attempt, number)
    if (folder / MANIFEST).exists():
        raise SnapshotError(f"snapshot {folder} is committed already; take a new number")
    _await_files(folder, files, visible_s)
    streams: dict[str, Counts] = {}
    for name, one in ((name, counts) for file in files for name, counts in file.streams.items()):
        held = streams.get(name, Counts())
        streams[name] = Counts(held.rows + one.rows, held.blocks + one.blocks, held.bytes + one.bytes)
    manifest = Manifest(
        layout=LAYOUT,
        run_id=attempt.run.run_id,
        attempt=attempt.number,
        number=number,
        t=time.time(),
        policy_version=policy_version,
        ledger_seq=ledger_seq,
        files=list(files),
        streams=streams,
    )
    try:
        write_sealed(folder / MANIFEST, msgspec.to_builtins(manifest))
    except OSError as error:
        raise SnapshotError(f"{host()}: {folder / MANIFEST} cannot be written: {error}") from error
    return manifest


def read_manifest(folder: Path, run_id: str) -> Manifest:
    """The manifest of a snapshot, checked by itself; :func:`check_files` checks the rest.

    Raises:
        Damaged: it cannot be read, or is not what was written.
        SnapshotError: it is of another run, or of a layout that is not known here.
    """
    path = folder / MANIFEST
    try:
        record = read_sealed(path)
    except FileDamaged as error:
        raise Damaged(str(error)) from error
    if (layout := record.get("layout")) != LAYOUT:
        raise SnapshotError(f"{path} has layout {layout}, this hpcrl reads {LAYOUT}: go on with the one that wrote it")
    if (found := record.get("run_id")) != run_id:
        raise SnapshotError(f"{path} is of run {found!r}, not of {run_id!r}: take it out of this run's directory")
    try:
        return msgspec.convert(record, Manifest)
    except msgspec.ValidationError as error:
        raise Damaged(f"{path} is damaged: {error}") from error


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file with its size and checksum.

    Raises:
        Damaged: names the file.
    """
    for file in manifest.files:
        try:
            check_file(folder, file)
        except FileDamaged as error:
            raise Damaged(str(error)) from error


def _await_files(folder: Path, files: Sequence[FileRecord], seconds: float) -> None:
    sizes: dict[str, int] = {}

    def poll() -> bool | None:
        # Listing the folder makes a network file system ask its server again.
        sizes.update({path.name: path.stat().st_size for path in folder.glob("node-*.h5")})
        return all(sizes.get(file.name) == file.size for file in files) or None

    try:
        wait_for(f"the files of all nodes in {folder}", poll, seconds=seconds)
    except DeadlineExceeded as error:
        wrong = [f"{f.name} has {sizes.get(f.name, 'no')} bytes of {f.size}" for f in files if sizes.get(f.name) != f.size]
        raise SnapshotError(f"{host()}: snapshot {folder} is not committed: {error}: {', '.join(wrong)}") from error
