"""``hpcrl queue``: what is in a run's queue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.attempts import attempt_of
from hpcrl.config.nearest import nearest
from hpcrl.launch.find import find_run
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    from hpcrl.dataplane.snapshot.read import Snapshot
    from hpcrl.run.directory import RunDirectory

HDF5, JSON_LINES = (".h5", ".hdf5"), (".jsonl",)
# Below this an export is done before a bar would be read [bytes].
SHOW_PROGRESS = 64 << 20


@click.group()
def command() -> None:
    """The rows of a run's queue."""


@command.command("export")
@click.argument("run")
@click.option("--stream", default=None, help="Only this stream; all if left out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="File to write, FILE.h5 or FILE.jsonl; RUN's name with -queue.h5 in this folder if left out.",
)
@click.option("--attempt", type=int, default=None, help="Newest snapshot of this attempt; of the run if left out.")
@click.option("--compress", is_flag=True, help="A smaller HDF5 file (gzip), which takes longer.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def export(run: str, stream: str | None, out: Path | None, attempt: int | None, compress: bool, force: bool) -> None:
    """Write the newest snapshot of the queue of RUN, a directory or a name, to one file: HDF5, or JSON lines."""
    found = find_run(run)
    if attempt is not None:
        attempt_of(found, attempt)
    path = out or Path(f"{found.path.name}-queue.h5")
    check_target(path, compress=compress, force=force)
    snapshot = find_snapshot(found, attempt)
    rows = write(snapshot, stream, path, compress=compress)
    manifest = snapshot.manifest
    click.echo(
        f"{path}: {rows} rows, {path.stat().st_size / 1e6:.1f} MB, of snapshot {manifest.number} of attempt "
        f"{manifest.attempt}, policy version {manifest.policy_version}"
    )


def check_target(path: Path, *, compress: bool, force: bool) -> None:
    """Raise :class:`CheckFailed` with all that is wrong with the file to write."""

    problems = []
    if path.suffix not in HDF5 + JSON_LINES:
        problems.append(f"--out {path}: a name must end in {', '.join(HDF5 + JSON_LINES)}, which says what is written")
    if compress and path.suffix in JSON_LINES:
        problems.append("--compress is for HDF5; JSON lines can be compressed afterwards")
    if not path.parent.is_dir():
        problems.append(f"--out {path}: there is no folder {path.parent}")
    elif path.is_dir():
        problems.append(f"--out {path} is a folder")
    elif path.exists() and not force:
        problems.append(f"{path} is there already; choose another --out, or replace it with --force")
    if problems:
        raise CheckFailed(problems)


def find_snapshot(run: RunDirectory, attempt: int | None) -> Snapshot:
    """The newest whole snapshot; says on standard error which ones were passed over.

    Raises:
        CheckFailed: there is none.
    """
    from hpcrl.dataplane.snapshot.read import newest_snapshot

    snapshot = newest_snapshot(run, attempt, tell=lambda text: click.echo(f"hpcrl: {text}", err=True))
    if snapshot is None:
        where = f"run {run.path}" if attempt is None else f"attempt {attempt} of run {run.path}"
        raise CheckFailed([f"{where} has no snapshot of its queue"])
    return snapshot


def write(snapshot: Snapshot, stream: str | None, path: Path, *, compress: bool) -> int:
    """Write the file; the number of rows.

    Raises:
        CheckFailed: there is no such stream.
    """
    from hpcrl.dataplane.snapshot.export import export_hdf5, export_jsonl

    with snapshot.open() as merged:
        if stream is not None and stream not in merged.columns:
            raise CheckFailed([f"snapshot {snapshot.folder} has no stream {stream!r}; {nearest(stream, merged.columns)}"])
        names = list(merged.columns) if stream is None else [stream]
        infos = [info for info in merged.infos() if info.stream in names]
        size = sum(counts.bytes for name, counts in snapshot.manifest.streams.items() if name in names)
        length = sum(info.rows for info in infos)
        with click.progressbar(
            length=length, label="rows", file=sys.stderr, hidden=size < SHOW_PROGRESS
        ) as bar:
            if path.suffix in JSON_LINES:
                return export_jsonl(merged, names, path, progress=bar.update)
            return export_hdf5(snapshot, merged, names, path, progress=bar.update, compression="gzip" if compress else "none")
