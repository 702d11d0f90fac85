"""What commits a save of the trainer's state: one JSON file, written last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.layout import DAMAGED, MANIFEST, SaveName, StateError, look
from hpcrl.run.atomic import write_json
from hpcrl.run.disk import FileDamaged, FileRecord, check_file
from hpcrl.run.errors import host
from hpcrl.run.failpoints import reach
from hpcrl.run.sealed import read_sealed, write_sealed

LAYOUT = 1


class Mesh(msgspec.Struct, frozen=True):
    """The ranks that saved.

    Attributes:
        dims: ranks along each dimension, by its name.
    """

    world_size: int = 1
    dims: dict[str, int] = {}


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The newest snapshot of the queue that was committed when the save began."""

    attempt: int
    number: int
    digest: str


class Trained(msgspec.Struct, frozen=True):
    """The rows whose training the save is the first to hold: they are acknowledged once it is committed.

    Attributes:
        file: int64 array of their ids.
    """

    count: int = 0
    file: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A committed save.

    Attributes:
        t: Unix time [s]; for people, nothing is decided by it.
        cursor: see :class:`hpcrl.checkpoint.cursor.Cursor`.
        files: everything in the folder but the manifest.
        rng: files of the ranks' random states, in the ranks' order.
        queue: None where there was none.
        mlflow_run: empty where it is not known.
        metrics: figures of the step, by which the best saves are kept.
    """

    layout: int = LAYOUT
    run_id: str
    attempt: int
    step: int
    number: int
    t: float = 0.0
    policy_version: int = 0
    cursor: dict[str, Any] = {}
    mesh: Mesh = Mesh()
    rng: list[str] = []
    trained: Trained = Trained()
    queue: QueueSnapshot | None = None
    mlflow_run: str = ""
    identity: Identity = Identity()
    metrics: dict[str, float] = {}
    files: list[FileRecord] = []

    @property
    def name(self) -> SaveName:
        """Which save it is."""
        return SaveName(self.attempt, self.step, self.number)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the save in ``folder/NAME`` exist; everything that it names must be durable.

    Raises:
        OSError: it cannot be written.
        StateError: it is there already.
    """
    path = folder / str(manifest.name) / MANIFEST
    if path.exists():
        raise StateError(f"{path} is there already: a save is committed once")
    reach("manifest.begin", path)
    write_sealed(path, msgspec.to_builtins(manifest), written=lambda: reach("manifest.written", path))
    reach("manifest.done", path)


def read_manifest(folder: Path, name: SaveName, run_id: str | None = None, *, late_s: float = 0.0) -> Manifest:
    """The manifest of a save, checked by itself; :func:`check_files` checks the rest.

    Args:
        run_id: what it must be of; None takes any.
        late_s: how long it may take to be seen [s].

    Raises:
        FileDamaged: it cannot be read, or is not what was written.
        StateError: it is of another run, or of a layout that is not known here.
    """
    path = folder / str(name) / MANIFEST
    record = read_sealed(path, seconds=late_s)
    if (layout := record.get("layout")) != LAYOUT:
        raise StateError(f"{path} has layout {layout}, this hpcrl reads {LAYOUT}: go on with the one that wrote it")
    if run_id is not None and (found := record.get("run_id")) != run_id:
        raise StateError(f"{path} is of run {found!r}, not of {run_id!r}: take its folder out of this run's directory")
    try:
        manifest = msgspec.convert(record, Manifest)
    except msgspec.ValidationError as error:
        raise FileDamaged(f"{path} is damaged: {error}") from error
    if manifest.name != name:
        raise FileDamaged(f"{path} is damaged: it is the manifest of {manifest.name}")
    return manifest


def check_files(folder: Path, manifest: Manifest, *, share: tuple[int, int] = (0, 1), late_s: float = 0.0) -> Iterator[str]:
    """Compare the files of a save with their sizes and checksums; what is wrong with each that is not as it was written.

    Args:
        share: ``(rank, ranks)``: look at every ranks-th file only, dealt by size.
        late_s: how long files may take to be seen, all of them together [s].
    """
    rank, ranks = share
    until = time.monotonic() + late_s
    by_size = sorted(manifest.files, key=lambda file: (-file.size, file.name))
    for file in by_size[rank::ranks]:
        try:
            check_file(folder / str(manifest.name), file, seconds=max(0.0, until - time.monotonic()))
        except FileDamaged as error:
            yield str(error)


def mark_damaged(folder: Path, name: SaveName, why: str) -> None:
    """Let a save count no longer.

    Raises:
        OSError: that cannot be written down.
    """
    write_json(folder / str(name) / DAMAGED, {"why": why, "host": host()})


def newest(folder: Path, run_id: str | None = None) -> Manifest | None:
    """The manifest of the newest committed save whose manifest is whole; None where there is none.

    Raises:
        StateError: a newer one is of another run, or of a layout that is not known here.
    """
    return next((found for found in manifests(folder, run_id) if isinstance(found, Manifest)), None)


def manifests(folder: Path, run_id: str | None = None) -> Iterator[Manifest | FileDamaged]:
    """The manifest of every committed save, newest first, or what is wrong with it.

    Raises:
        StateError: as :func:`read_manifest`.
    """
    for name in reversed(look(folder).committed):
        try:
            yield read_manifest(folder, name, run_id)
        except FileDamaged as error:
            # One that retention has just removed was not the newest.
            if (folder / str(name) / MANIFEST).exists():
                yield error
