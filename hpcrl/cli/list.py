"""``hpcrl list``: runs, what each is doing, and how far it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpcrl.launch.survey import Surveyed

COLORS = {
    "running": "cyan",
    "starting": "cyan",
    "ending": "cyan",
    "finished": "green",
    "failed": "red",
    "lost": "red",
    "timed out": "yellow",
    "stopped": "yellow",
    "cancelled": "yellow",
}


@click.command("list")
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("-n", "--newest", type=click.IntRange(min=1), default=30, show_default=True, help="Show only so many.")
@click.option("--json", "as_json", is_flag=True, help="A JSON array instead of a table.")
def command(root: Path | None, newest: int, as_json: bool) -> None:
    """List the runs in the folder ROOT, newest first.

    Without ROOT: those in $HPCRL_RUNS, in ./runs, and where site profiles keep them.
    """
    from hpcrl.launch.find import roots, runs_in
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.survey import survey

    folders = [root] if root is not None else list(roots())
    runs = sorted((run for folder in folders for run in runs_in(folder)), key=lambda run: run.run_id, reverse=True)
    shown = survey(runs[:newest], Slurm())
    if as_json:
        click.echo(json.dumps([item.to_json() for item in shown], indent=2))
        return
    if not shown:
        click.echo(f"no runs in {', '.join(map(str, folders)) or 'runs'}")
        return
    click.echo(render(shown))
    if len(runs) > newest:
        click.echo(f"{len(runs) - newest} older runs; --newest {len(runs)} shows all")
    silent = next((item.silent for item in shown if item.silent), "")
    if silent:
        click.echo(f"states are the runs' own records, since Slurm cannot be asked: {silent}", err=True)


def render(shown: list[Surveyed]) -> str:
    """The table as lines of text."""
    from hpcrl.tracking.view import duration

    rows = [("RUN", "JOB", "STATE", "STEP", "REWARD", "AGE", "")]
    for item in shown:
        step = "" if item.step is None else f"{item.step}/{item.steps}" if item.steps else str(item.step)
        rows.append(
            (
                item.run.path.name,
                "" if item.job_id is None else str(item.job_id),
                item.standing.word,
                step,
                "" if item.reward is None else f"{item.reward:.3f}",
                duration(item.age_s),
                "" if item.silent else item.standing.why,
            )
        )
    widths = [max(len(row[index]) for row in rows) for index in range(6)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        cells[2] = click.style(cells[2], fg=COLORS.get(row[2]))
        lines.append("  ".join([*cells, row[6]]).rstrip())
    return "\n".join(lines)
