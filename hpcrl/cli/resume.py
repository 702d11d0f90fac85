"""``hpcrl resume``: a further job for a run."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("run")
@click.option("--after", metavar="JOB", help="Start only once this job, or the job of this run, has ended.")
@click.option("--hold", is_flag=True, help="Queue the job, and let it wait for `scontrol release`.")
@click.option("--force", is_flag=True, help="Go on even with another model, tokenizer or dataset than the saves'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(run: str, after: str | None, hold: bool, force: bool, as_json: bool) -> None:
    """Queue a further job for RUN, a directory or a name; it goes on from its last save.

    Refused while a job of the run is queued or runs, where its time limit does not hold a step, and where model, tokenizer or
    dataset are not those of its saves. A run of `hpcrl run` goes on with `hpcrl run --resume`.
    """
    from hpcrl.cli.submit import job_of, shown_name
    from hpcrl.config.codec import recipe_from_run
    from hpcrl.launch.find import find_run
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.steer import GO_ON, must_be_slurms, resume
    from hpcrl.launch.time_limit import of_run
    from hpcrl.roles.identity import check_resume
    from hpcrl.run.errors import CheckFailed

    held = find_run(run)
    must_be_slurms(held, GO_ON.format(held.path))
    limit = of_run(held)
    if limit is not None and limit.problems:
        raise CheckFailed(limit.problems)
    check_resume(held, recipe_from_run(held), force=force)
    estimate = limit.estimate if limit is not None else ""
    job = resume(held, Slurm(), hold=hold, after=None if after is None else job_of(after))
    if as_json:
        click.echo(json.dumps({"run": str(held.path), "run_id": held.run_id, "job": job, "estimate": estimate}, indent=2))
    else:
        if estimate:
            click.echo(estimate)
        click.echo(f"job {job} goes on with {held.path}\nnext:\n  hpcrl status {shown_name(held.path)}")
