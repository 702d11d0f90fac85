"""``hpcrl resume``: a further job for a run."""

from __future__ import annotations

import json
from typing import Any

import click

from hpcrl.cli.asking import asked_fields, job_options


@click.command()
@click.argument("run")
@job_options
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Change a field of the run's recipe; repeatable.")
@click.option("--after", metavar="JOB", help="Start only once this job, or the job of this run, has ended.")
@click.option("--hold", is_flag=True, help="Queue the job, and let it wait for `scontrol release`.")
@click.option("--force", is_flag=True, help="Go on even with another model, tokenizer or dataset than the saves'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(run: str, sets: tuple[str, ...], after: str | None, hold: bool, force: bool, as_json: bool, **given: Any) -> None:
    """Queue a further job for RUN, a directory or a name; it goes on from its last save.

    What is not given stays as in the run's last job; with other nodes, partitions or fields the job is laid out anew, and the
    trainer's state is shared out over the ranks that there are then. Refused while a job of the run is queued or runs, where
    its time limit does not hold a step, and where model, tokenizer or dataset are not those of its saves. A run of `hpcrl run`
    goes on with `hpcrl run --resume`.
    """
    from hpcrl.cli.submit import job_of, layout_in_words, shown_name
    from hpcrl.config.codec import recipe_from_run
    from hpcrl.launch.change import Change, prepare_change
    from hpcrl.launch.find import find_run
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.steer import GO_ON, must_be_slurms, resume
    from hpcrl.launch.time_limit import of_run
    from hpcrl.roles.identity import check_resume
    from hpcrl.run.errors import CheckFailed

    held, slurm, job_before = find_run(run), Slurm(), None if after is None else job_of(after)
    must_be_slurms(held, GO_ON.format(held.path))
    change = Change(sets=sets, asked=asked_fields(**given))
    changed = prepare_change(held, change, slurm, job_before) if change else None
    if changed is None:
        limit = of_run(held)
        if limit is not None and limit.problems:
            raise CheckFailed(limit.problems)
        estimate = limit.estimate if limit is not None else ""
    else:
        estimate = changed.estimate
    check_resume(held, recipe_from_run(held) if changed is None else changed.recipe, force=force)
    job = resume(held, slurm, hold=hold, after=job_before, changed=changed)
    if as_json:
        click.echo(json.dumps({"run": str(held.path), "run_id": held.run_id, "job": job, "estimate": estimate}, indent=2))
        return
    if changed is not None:
        click.echo(layout_in_words(changed.files.layout))
    if estimate:
        click.echo(estimate)
    click.echo(f"job {job} goes on with {held.path}\nnext:\n  hpcrl status {shown_name(held.path)}")
