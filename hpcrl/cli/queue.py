"""``hpcrl queue``: what is in a run's queue, now or when it was last saved."""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.attempts import attempt_of
from hpcrl.config.nearest import nearest
from hpcrl.launch.find import find_run
from hpcrl.run.atomic import write_text
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    from hpcrl.cli.observe import Observer
    from hpcrl.dataplane.snapshot.read import Snapshot
    from hpcrl.dataplane.snapshot.write import Compression
    from hpcrl.run.directory import RunDirectory

HDF5, JSON_LINES = (".h5", ".hdf5"), (".jsonl",)
# Below this an export is done before a bar would be read [bytes].
SHOW_PROGRESS = 64 << 20


class RunOrCommand(click.Group):
    """A group that takes what is none of its commands for a run to show."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, after ``show`` was put before a run."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=RunOrCommand)
def command() -> None:
    """The rows of a run's queue: `hpcrl queue RUN` shows what it holds now."""


@command.command("show")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables (one a line with --watch).")
@click.option("--watch", type=click.FloatRange(min=0.1), default=None, metavar="SECONDS", help="Look again so often.")
def show(run: str, as_json: bool, watch: float | None) -> None:
    """Show what the queue of RUN, a directory or a name, holds: rows by column, rates, leases, lag, drops.

    Rates come from two looks a second apart. Of a run that has ended: what its newest snapshot holds.
    """
    from hpcrl.cli.observe import Observer, Silent

    found = find_run(run)
    try:
        with Observer(found) as observer:
            _look_on(found, observer, as_json=as_json, watch=watch)
    except Silent as silent:
        _show_saved(found, silent, as_json=as_json)


@command.command("why")
@click.argument("run")
@click.argument("row", type=int)
def why(run: str, row: int) -> None:
    """Say what ROW, a row id as the history and errors give it, waits for in the queue of RUN, and who owes it."""
    from hpcrl.cli.observe import Observer
    from hpcrl.dataplane.rowids import describe

    with Observer(find_run(run)) as observer:
        lines = observer.why(row)
    click.echo("\n".join([f"row {row}: {describe(row)}", *lines]))


@command.command("metrics")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Replace this file in one step, for node_exporter.")
@click.option("--serve", "port", type=click.IntRange(1, 65535), default=None, help="Answer Prometheus on this port.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where --serve listens.")
def metrics(run: str, out: Path | None, port: int | None, address: str) -> None:
    """Print figures of the queue of RUN in Prometheus' text format.

    With --serve it answers /metrics until Ctrl-C, to whoever sends the run's key as a bearer token: Prometheus'
    authorization.credentials_file is RUN/key.
    """
    from hpcrl.cli.observe import Observer
    from hpcrl.cli.queue_figures import prometheus

    found = find_run(run)
    with Observer(found) as observer:
        if port is not None:
            from hpcrl.cli.queue_serve import serve

            serve(address, port, found.key, lambda: prometheus(found.path.name, observer.figures()))
            return
        text = prometheus(found.path.name, observer.figures())
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)


def _look_on(run: RunDirectory, observer: Observer, *, as_json: bool, watch: float | None) -> None:
    from rich.console import Console

    from hpcrl.cli.queue_figures import rates, table

    console = Console()
    before, at = observer.figures(), time.monotonic()
    while True:
        time.sleep(watch or 1.0)
        figures, now = observer.figures(), time.monotonic()
        of = rates(before, figures, now - at)
        before, at = figures, now
        if as_json:
            streams = {name: {**stream, "rates": asdict(of[name])} for name, stream in figures.items()}
            value = {"run_id": run.run_id, "attempt": observer.attempt.number, "live": True, "streams": streams}
            click.echo(json.dumps(value, indent=None if watch else 2))
        else:
            if watch and console.is_terminal:
                console.clear()
            console.print(f"[bold]{run.path.name}[/bold]  run {run.run_id}  attempt {observer.attempt.number}", highlight=False)
            console.print(table(figures, of))
        if not watch:
            return


def _show_saved(run: RunDirectory, silent: CheckFailed, *, as_json: bool) -> None:
    """What a run that nobody can ask has left; raises ``silent`` if that is nothing."""
    from hpcrl.dataplane.snapshot.manifest import Damaged, committed, read_manifest

    for folder in committed(run):
        try:
            manifest = read_manifest(folder, run.run_id)
        except Damaged as error:
            click.echo(f"hpcrl: {error}", err=True)
            continue
        streams = {
            name: {"rows": counts.rows, "blocks": counts.blocks, "bytes": counts.bytes}
            for name, counts in manifest.streams.items()
        }
        if as_json:
            about = {"attempt": manifest.attempt, "live": False, "snapshot": str(folder), "t": manifest.t}
            click.echo(json.dumps({"run_id": run.run_id, **about, "streams": streams}, indent=2))
            return
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.t))
        click.echo(f"{'; '.join(silent.problems)}\nits newest snapshot, {folder} of {when}, holds:")
        for name, found in streams.items():
            click.echo(f"  {name}: {found['rows']:,} rows in {found['blocks']:,} blocks, {found['bytes'] / 1e6:.1f} MB")
        return
    raise silent


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
        columns = {name: merged.columns[name] for name in names}
        blocks = itertools.chain.from_iterable(merged.blocks(name) for name in names)
        with click.progressbar(length=length, label="rows", file=sys.stderr, hidden=size < SHOW_PROGRESS) as bar:
            if path.suffix in JSON_LINES:
                return export_jsonl(columns, blocks, path, progress=bar.update)
            of = snapshot.manifest
            about: dict[str, str | int | float] = {
                "run_id": of.run_id,
                "attempt": of.attempt,
                "number": of.number,
                "t": of.t,
                "policy_version": of.policy_version,
            }
            kind: Compression = "gzip" if compress else "none"
            return export_hdf5(columns, blocks, path, about=about, progress=bar.update, compression=kind)
