"""``hpcrl cancel``: end a run on a cluster."""

from __future__ import annotations

import click


@click.command()
@click.argument("run")
@click.option("--now", is_flag=True, help="End it at once: what came after its last save is lost.")
def command(run: str, now: bool) -> None:
    """Let RUN, a directory or a name, save and end. One that waits in the queue leaves it."""
    from hpcrl.launch.find import find_run
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.steer import cancel

    click.echo(cancel(find_run(run), Slurm(), now=now))
