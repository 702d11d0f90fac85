"""``hpcrl run``: a recipe on this machine, from the checks to the report."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpcrl.plan.plan import Plan
    from hpcrl.recipe import Recipe
    from hpcrl.run.directory import RunDirectory


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path), required=False)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override a parameter of the recipe or a field; repeatable.",
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run is kept [runs/RECIPE-TIME].")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Continue this run instead of a recipe.")
@click.option("--force", is_flag=True, help="With --resume: go on even with another model, tokenizer or dataset.")
@click.option("--in-process", is_flag=True, help="Every role in a thread of this process, rows in memory.")
@click.option("--tracking-uri", metavar="URI", help="MLflow server [a database in the run directory].")
def command(
    recipe: Path | None,
    sets: tuple[str, ...],
    run_dir: Path | None,
    resume: Path | None,
    force: bool,
    in_process: bool,
    tracking_uri: str | None,
) -> None:
    """Run RECIPE on this machine until it is done.

    Ctrl-C saves and ends within the recipe's drain limit; a second one ends at once.
    """
    from hpcrl.launch.session import Session
    from hpcrl.run.errors import CheckFailed

    if (recipe is None) == (resume is None):
        raise click.UsageError("name a RECIPE, or a run with --resume")
    if resume is not None and run_dir:
        raise click.UsageError("--resume continues a run where it is: it takes no --run-dir")
    if force and resume is None:
        raise click.UsageError("--force is for --resume")
    with ExitStack() as stack:
        try:
            if resume is not None:
                built, run, plan = _reopen(resume, sets, stack, force=force)
            else:
                built, run, plan = _create(recipe, sets, run_dir, stack)  # type: ignore[arg-type]
        except CheckFailed as failed:
            click.echo(f"hpcrl: {failed}\nnothing was started", err=True)
            sys.exit(2)
        click.echo(f"run {run.run_id} in {run.path}", err=True)
        session = Session(built, run, plan, in_process=in_process, tracking_uri=tracking_uri)
        sys.exit(session.run())


def _create(path: Path, sets: tuple[str, ...], run_dir: Path | None, stack: ExitStack) -> tuple[Recipe, RunDirectory, Plan]:
    from hpcrl.config.codec import recipe_to_json
    from hpcrl.config.load import MODULE, sources
    from hpcrl.config.override import build_recipe
    from hpcrl.launch.preflight import preflight
    from hpcrl.launch.sole import at_work
    from hpcrl.plan.local import local_allocation
    from hpcrl.run.directory import RunDirectory

    recipe = build_recipe(path, sets)
    click.echo(f"checking recipe {recipe.name} …", err=True)
    target = run_dir or Path("runs") / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    plan = preflight(recipe, local_allocation(), target)
    run = RunDirectory.create(
        target, name=recipe.name, recipe_json=recipe_to_json(recipe), sources=sources(sys.modules[MODULE])
    )
    stack.enter_context(at_work(run))
    return recipe, run, plan


def _reopen(path: Path, sets: tuple[str, ...], stack: ExitStack, *, force: bool) -> tuple[Recipe, RunDirectory, Plan]:
    from hpcrl.checkpoint.cursor import read_cursor
    from hpcrl.config.changes import changed_recipe
    from hpcrl.config.codec import recipe_from_run, recipe_to_json
    from hpcrl.launch.preflight import role_problems
    from hpcrl.launch.sole import at_work
    from hpcrl.plan.local import local_allocation
    from hpcrl.plan.plan import make_plan
    from hpcrl.roles.identity import check_resume
    from hpcrl.run.directory import RunDirectory
    from hpcrl.run.errors import CheckFailed

    run = RunDirectory.open(path)
    stack.enter_context(at_work(run))
    recipe = changed_recipe(recipe_from_run(run), sets, trained=read_cursor(run.state).step if sets else 0)
    if sets and (problems := role_problems(recipe)):
        raise CheckFailed(problems)
    check_resume(run, recipe, force=force)
    plan = make_plan(recipe, local_allocation(), run.run_id)
    run.change_recipe(recipe_to_json(recipe))
    return recipe, run, plan
