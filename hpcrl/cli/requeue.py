"""``hpcrl requeue``: send a run back into the queue."""

from __future__ import annotations

import click


@click.command()
@click.argument("run")
@click.option("--now", is_flag=True, help="At once: what came after its last save is done again.")
def command(run: str, now: bool) -> None:
    """Let RUN, a directory or a name, save and go back into Slurm's queue; it goes on when it starts again."""
    from hpcrl.launch.find import find_run
    from hpcrl.launch.slurm import Slurm
    from hpcrl.launch.steer import requeue

    click.echo(requeue(find_run(run), Slurm(), now=now))
