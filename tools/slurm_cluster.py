#!/usr/bin/env python
"""A real Slurm cluster on this machine, to learn on and to test on.

    python tools/slurm_cluster.py up /tmp/cluster        # seconds; prints the line that makes sbatch, srun, … use it
    python tools/slurm_cluster.py status /tmp/cluster    # exit code 0 only when all is well
    python tools/slurm_cluster.py down /tmp/cluster      # ends its jobs and daemons, and removes its files

`slurm/README.md` shows what to do with it.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import click

from hpcrl.run.errors import HpcrlError
from hpcrl.testing.slurm.cluster import Cluster
from hpcrl.testing.slurm.record import load_record

FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Start, look at and stop a real Slurm cluster of virtual nodes on this machine; it lives in the folder DIR."""


@cli.command()
@FOLDER
@click.option("--nodes", default=6, show_default=True, help="Virtual nodes, named n1 on.")
@click.option("--gpus", default=4, show_default=True, help="GPUs of each node; Slurm hands them out, no device is behind them.")
@click.option("--cpus", default=32, show_default=True, help="CPUs of each node as Slurm counts them.")
@click.option("--accounting", is_flag=True, help="With slurmdbd and MariaDB, so that sacct answers.")
@click.option(
    "--user-signal/--no-user-signal",
    default=True,
    show_default=True,
    help="A preempted job's batch script is signalled; without, its steps alone are, which is Slurm's default.",
)
def up(folder: Path, nodes: int, gpus: int, cpus: int, accounting: bool, user_signal: bool) -> None:
    """Start a cluster; as root also install Debian's Slurm if it is missing. Nothing happens if it is up."""
    begun = time.monotonic()
    cluster = Cluster(folder, nodes=nodes, gpus=gpus, cpus=cpus, accounting=accounting, user_signal=user_signal).up()
    click.echo(f"{nodes} nodes are up after {time.monotonic() - begun:.1f} s. In your shell:", err=True)
    # To stdout alone, so that `eval "$(… up DIR)"` works too.
    for name, value in cluster.env.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo("sinfo")


@cli.command()
@FOLDER
def down(folder: Path) -> None:
    """End the jobs and daemons of the cluster in DIR and remove its files."""
    if load_record(folder.resolve()) is None:
        click.echo(f"there is no cluster in {folder}", err=True)
        return
    Cluster.open(folder).down()


@cli.command()
@FOLDER
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def status(folder: Path, as_json: bool) -> None:
    """Show daemons, nodes, partitions and jobs. Exit code 0 only when all is well."""
    from rich.console import Console

    from hpcrl.testing.slurm.table import render

    seen = Cluster.open(folder).status()
    if as_json:
        click.echo(json.dumps(seen.to_json(), indent=2))
    else:
        Console(highlight=False).print(render(seen))
    sys.exit(0 if seen.ok else 1)


def main() -> None:
    try:
        cli()
    # A file or a process of somebody else's says so itself.
    except (HpcrlError, OSError) as error:
        click.secho(str(error), fg="red", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
