"""``hpcrl submit``: a recipe to a Slurm cluster, from the checks to the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrl.cli.asking import asked_fields, job_options

if TYPE_CHECKING:
    from hpcrl.launch.layout import Layout
    from hpcrl.launch.submit import Prepared, Submission


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@job_options
@click.option("--site", metavar="S", help="Site profile, by name or file [default]; `hpcrl site list` shows them.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override a recipe parameter or field; repeatable.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run is kept [runs/NAME].")
@click.option("--name", default="", help="Name of the run and of its job [RECIPE, its folder RECIPE-TIME].")
@click.option("--code", multiple=True, type=click.Path(path_type=Path), metavar="DIR", help="Keep this folder's code too.")
@click.option("--after", metavar="JOB", help="Start only once this job, or the job of this run, has ended.")
@click.option("--hold", is_flag=True, help="Queue the job, and let it wait for `scontrol release`.")
@click.option("--no-requeue", is_flag=True, help="Slurm may not put the job back into the queue.")
@click.option("--tracking-uri", metavar="URI", help="MLflow server [a database in the run directory].")
@click.option("--dry-run", is_flag=True, help="Check, show the plan and the script; make and queue nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(
    recipe: Path,
    site: str | None,
    sets: tuple[str, ...],
    run_dir: Path | None,
    name: str,
    code: tuple[Path, ...],
    after: str | None,
    hold: bool,
    no_requeue: bool,
    tracking_uri: str | None,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Queue RECIPE on a Slurm cluster.

    Everything is checked first: exit code 2 means that something is wrong, all of it is printed, and nothing was queued. The
    run keeps its code and its recipe, so later edits do not reach it.
    """
    from hpcrl.launch.layout import Asked
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.submit import Order, prepare, submit

    slurm = Slurm()
    order = Order(
        recipe=recipe,
        sets=sets,
        asked=Asked(**asked_fields(**asked)),
        site=site,
        run_dir=run_dir,
        name=name,
        hold=hold,
        after=None if after is None else job_of(after),
        requeue=not no_requeue,
        tracking_uri=tracking_uri,
        code=code,
    )
    prepared = prepare(order, slurm, dry=dry_run)
    if dry_run:
        _show_dry(prepared, as_json)
        return
    done = submit(prepared, slurm)
    if as_json:
        value = {
            "run": str(done.run.path),
            "run_id": done.run.run_id,
            "job": done.job,
            "joined": dict(done.joined),
            "said": done.said,
            "estimate": prepared.estimate,
        }
        click.echo(json.dumps(value, indent=2))
    else:
        _show(done, prepared)


def job_of(text: str) -> int:
    """A job's id from text that is one, or that names a run: then its newest job.

    Raises:
        CheckFailed: there is no such run, or it has no job.
    """
    from hpcrl.launch.find import find_run
    from hpcrl.launch.jobs import recorded_jobs
    from hpcrl.run.errors import CheckFailed

    if text.isdecimal():
        return int(text)
    run = find_run(text)
    jobs = recorded_jobs(run)
    if not jobs:
        raise CheckFailed([f"--after {text}: run {run.path} has no job"])
    return jobs[-1].job


def _show(done: Submission, prepared: Prepared) -> None:
    held = " (held)" if prepared.order.hold else ""
    click.echo(f"run {done.run.run_id} in {done.run.path}")
    click.echo(f"job {done.job}{held}: {layout_in_words(prepared.layout)}")
    for component, job in done.joined.items():
        click.echo(f"job {job}: {component}, which joins it")
    if prepared.estimate:
        click.echo(prepared.estimate)
    if done.said and not prepared.order.hold and prepared.order.after is None:
        click.echo(f"Slurm's estimate: {done.said}")
    name = shown_name(done.run.path)
    rows = [
        (f"hpcrl status {name}", "what it is doing, or why it waits"),
        (f"hpcrl logs {name} -f", "what its processes print"),
        (f"hpcrl cancel {name}", "save and end"),
    ]
    if prepared.order.hold:
        rows.insert(0, (f"scontrol release {done.job}", "let it start"))
    width = max(len(line) for line, _ in rows)
    click.echo("next:\n" + "\n".join(f"  {line:<{width}}  # {about}" for line, about in rows))


def _show_dry(prepared: Prepared, as_json: bool) -> None:
    if as_json:
        value = {
            "script": prepared.script(),
            "joined": {name: text for name, text in prepared.scripts().items() if name != "batch.sh"},
            "layout": json.loads(prepared.layout.to_json()),
            "plan": json.loads(prepared.plan.to_json()),
            "said": prepared.said,
            "estimate": prepared.estimate,
            "unchecked": prepared.unchecked,
        }
        click.echo(json.dumps(value, indent=2))
        return
    from hpcrl.cli.plan import show

    for name, script in reversed(prepared.scripts().items()):
        click.echo(f"# {name}\n{script}" if prepared.layout.joined else script)
    show(prepared.recipe, prepared.plan)
    click.echo(layout_in_words(prepared.layout))
    if prepared.estimate:
        click.echo(prepared.estimate)
    if prepared.said:
        click.echo(f"Slurm's estimate: {prepared.said}")
    if prepared.unchecked:
        click.echo(f"not checked against a cluster: {prepared.unchecked}", err=True)
    click.echo("nothing was queued")


def layout_in_words(layout: Layout) -> str:
    """Components, their nodes and GPUs, and the time limit."""
    from hpcrl.launch.components import in_words

    words = in_words((item.name, item.nodes, item.gpus_per_node) for item in layout.components)
    return f"{words}, {layout.minutes} minutes"


def shown_name(path: Path) -> str:
    """The run as a later command can name it from here: its folder's name alone, where that is enough."""
    from hpcrl.launch.find import find_run
    from hpcrl.run.errors import CheckFailed

    try:
        return path.name if find_run(path.name).path.resolve() == path.resolve() else str(path)
    except CheckFailed:
        return str(path)
