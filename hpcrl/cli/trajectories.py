"""``hpcrl trajectories``: what a run was trained on, in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    import numpy as np

    from hpcrl.dataplane.trajectories.read import Trajectories
    from hpcrl.dataplane.trajectories.select import Bounds, Key, Wanted
    from hpcrl.run.directory import RunDirectory

# Rows of a table that a person can read at once.
SHOWN = 20
# More rows than this take so long to write that a bar is shown.
SHOW_PROGRESS = 20_000


@click.command()
@click.argument("run")
@click.option("--step", default=None, metavar="FIRST:LAST", help="Trained in these steps: 10:20, 10:, :20, 10.")
@click.option("--reward", default=None, metavar="CONDITION", help="Such as '<0.5', '>=1', 0:0.5.")
@click.option("--prompt", type=int, default=None, metavar="N", help="Answers to the prompt of this number.")
@click.option("--version", default=None, metavar="FIRST:LAST", help="Made by these policy versions alone.")
@click.option("--grep", default="", metavar="TEXT", help="In the answer, the question or the reference answer; any case.")
@click.option("--sort", type=click.Choice(["step", "reward", "length"]), default=None, help="The highest first.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--limit", type=click.IntRange(min=0), default=None, metavar="N", help="So many at most; 0 = all.")
@click.option(
    "--show", "row", default=None, metavar="ROW", help="All of one: PROMPT.SAMPLE as the table gives it, or a row id."
)
@click.option("--tokens", is_flag=True, help="With --show, --json, --jsonl: token by token, with version and log-probability.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--jsonl", "as_lines", is_flag=True, help="One JSON object a row.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, metavar="FILE", help="Write them to FILE.h5 or FILE.jsonl."
)
@click.option("--compress", is_flag=True, help="With --out: a smaller HDF5 file (gzip), which takes longer.")
@click.option("--force", is_flag=True, help="With --out: replace FILE if it is there.")
def command(
    run: str,
    step: str | None,
    reward: str | None,
    prompt: int | None,
    version: str | None,
    grep: str,
    sort: Key | None,
    reverse: bool,
    limit: int | None,
    row: str | None,
    tokens: bool,
    as_json: bool,
    as_lines: bool,
    out: Path | None,
    compress: bool,
    force: bool,
) -> None:
    """Browse what RUN, a directory or a name, was trained on: prompt, answer, reward, versions. Works while it goes on.

    How many samples of each step are kept is the trainer's field `trajectories`. Without --sort the newest are shown, in the
    order of training.
    """
    from hpcrl.dataplane.trajectories.read import Trajectories
    from hpcrl.dataplane.trajectories.select import Wanted, in_order
    from hpcrl.launch.find import find_run

    if sum([as_json, as_lines, out is not None]) > 1:
        raise click.UsageError("--json, --jsonl and --out are three ways: name one")
    wanted = _wanted(Wanted, step=step, reward=reward, prompt=prompt, version=version, text=grep)
    if out is not None:
        from hpcrl.cli.queue import check_target

        check_target(out, compress=compress, force=force)
    found_run = find_run(run)
    with Trajectories(found_run, tell=lambda text: click.echo(f"hpcrl: {text}", err=True)) as trajectories:
        if not trajectories.paths:
            raise CheckFailed([_nothing(found_run)])
        rows = trajectories.find(wanted)
        if row is not None:
            _show(found_run, trajectories, _one(rows, row), tokens=tokens, as_json=as_json or as_lines)
            return
        total = len(rows)
        rows = in_order(rows, sort, reverse=reverse)
        rows = _limited(
            rows, SHOWN if limit is None and not (as_json or as_lines or out) else limit, newest=sort is None and not reverse
        )
        if out is not None:
            _export(found_run, trajectories, rows, out, compress=compress)
        elif as_json or as_lines:
            _print_json(found_run, trajectories, rows, tokens=tokens, lines=as_lines)
        else:
            _print_table(trajectories, rows, total)


def _wanted(
    kind: type[Wanted], *, step: str | None, reward: str | None, prompt: int | None, version: str | None, text: str
) -> Wanted:
    problems: list[str] = []

    def bounds(name: str, given: str | None) -> Bounds | None:
        from hpcrl.dataplane.trajectories.select import Bounds

        try:
            return None if given is None else Bounds.parse(given)
        except ValueError as error:
            problems.append(f"--{name}: {error}")
            return None

    wanted = kind(
        step=bounds("step", step),
        reward=bounds("reward", reward),
        prompt=prompt,
        versions=bounds("version", version),
        text=text,
    )
    if problems:
        raise CheckFailed(problems)
    return wanted


def _limited(rows: np.ndarray, limit: int | None, *, newest: bool) -> np.ndarray:
    if not limit:
        return rows
    part: np.ndarray = rows[-limit:] if newest else rows[:limit]
    return part


def _one(rows: np.ndarray, what: str) -> np.ndarray:
    """The row that is meant, as an array of one.

    Raises:
        CheckFailed: there is none.
    """
    prompt, dot, sample = what.partition(".")
    if dot and prompt.isdecimal() and sample.isdecimal():
        found = rows[(rows["prompt"] == int(prompt)) & (rows["sample"] == int(sample))]
    elif what.isdecimal():
        found = rows[rows["row"] == int(what)]
    else:
        raise CheckFailed([f"--show {what}: a row is PROMPT.SAMPLE, such as 137.3, or a row id"])
    if not len(found):
        raise CheckFailed(
            [f"--show {what}: no such row was kept, or the other options leave it out; only some samples of each step are kept"]
        )
    newest: np.ndarray = found[-1:]
    return newest


def _show(run: RunDirectory, trajectories: Trajectories, rows: np.ndarray, *, tokens: bool, as_json: bool) -> None:
    from hpcrl.cli import trajectories_text
    from hpcrl.dataplane.trajectories.layout import STREAM

    (record,) = trajectories.read(rows, [column.name for column in STREAM.columns])
    if as_json:
        click.echo(json.dumps(trajectories_text.to_json(rows[0], record, tokens=tokens), indent=2))
        return
    from hpcrl.cli.trajectories_tokens import Vocabulary

    click.echo(trajectories_text.show(rows[0], record, Vocabulary(run), tokens=tokens))


def _print_table(trajectories: Trajectories, rows: np.ndarray, total: int) -> None:
    from rich.console import Console

    from hpcrl.cli import trajectories_text

    console = Console()
    if not console.is_terminal:
        console = Console(width=trajectories_text.WIDE)
    console.print(trajectories_text.table(rows, trajectories.read(rows, ["response"])))
    more = f" of {total:,}; --limit shows more" if len(rows) < total else ""
    console.print(f"{len(rows):,} rows{more}; --show PROMPT.SAMPLE shows one", highlight=False, style="dim")


def _print_json(run: RunDirectory, trajectories: Trajectories, rows: np.ndarray, *, tokens: bool, lines: bool) -> None:
    from hpcrl.cli import trajectories_text
    from hpcrl.dataplane.trajectories.layout import STREAM

    records = trajectories.read(rows, [column.name for column in STREAM.columns])
    made = (trajectories_text.to_json(row, record, tokens=tokens) for row, record in zip(rows, records, strict=True))
    if lines:
        for one in made:
            click.echo(json.dumps(one))
        return
    click.echo(json.dumps({"run_id": run.run_id, "path": str(run.path), "rows": list(made)}, indent=2))


def _export(run: RunDirectory, trajectories: Trajectories, rows: np.ndarray, path: Path, *, compress: bool) -> None:
    import time

    from hpcrl.cli.queue import JSON_LINES
    from hpcrl.dataplane.snapshot.export import export_hdf5, export_jsonl
    from hpcrl.dataplane.trajectories.layout import STREAM

    columns, blocks = {STREAM.name: STREAM.columns}, trajectories.blocks(rows)
    with click.progressbar(length=len(rows), label="rows", file=sys.stderr, hidden=len(rows) < SHOW_PROGRESS) as bar:
        progress: Callable[[int], None] = bar.update
        if path.suffix in JSON_LINES:
            export_jsonl(columns, blocks, path, progress=progress)
        else:
            about: dict[str, str | int | float] = {"run_id": run.run_id, "t": time.time()}
            kind = "gzip" if compress else "none"
            export_hdf5(columns, blocks, path, about=about, progress=progress, compression=kind)  # type: ignore[arg-type]
    click.echo(f"{path}: {len(rows)} rows, {path.stat().st_size / 1e6:.1f} MB")


def _nothing(run: RunDirectory) -> str:
    from hpcrl.cli.ckpt_look import trainer_of
    from hpcrl.roles.trainer import Trainer

    if not trainer_of(run).get("trajectories", Trainer.trajectories):
        return f"run {run.path} keeps no trajectories: its trainer's field `trajectories` is 0"
    return f"run {run.path} has no trajectories yet: they are written with each save, and once a minute"
