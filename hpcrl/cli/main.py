"""The ``hpcrl`` command. A command's module is imported when that command is called, so that help is quick."""

from __future__ import annotations

import importlib
import sys

import click

import hpcrl
from hpcrl.run.errors import CheckFailed, HpcrlError

# name: (module that holds it as ``command``, help in one line)
COMMANDS = {
    "run": ("hpcrl.cli.run", "Run a recipe, here or on the nodes of this Slurm job."),
    "submit": ("hpcrl.cli.submit", "Check a recipe, keep its code, queue it on a Slurm cluster."),
    "plan": ("hpcrl.cli.plan", "Show where a recipe's roles would be placed; start nothing."),
    "list": ("hpcrl.cli.list", "List runs: what each is doing, and how far it is."),
    "status": ("hpcrl.cli.status", "Show where a run is and what each process is at."),
    "logs": ("hpcrl.cli.logs", "Show or follow the logs of a run's processes."),
    "queue": ("hpcrl.cli.queue", "Show what is in a run's queue, why a row waits; export it."),
    "ckpt": ("hpcrl.cli.ckpt", "List, verify, prune, export a run's saves and versions."),
    "trajectories": ("hpcrl.cli.trajectories", "Browse what a run was trained on: prompts, answers, rewards."),
    "verify": ("hpcrl.cli.verify", "Prove that no row of a run was lost or trained twice."),
    "cancel": ("hpcrl.cli.cancel", "Let a run on a cluster save and end, or end it at once."),
    "resume": ("hpcrl.cli.resume", "Queue a further job for a run, which goes on where it ended."),
    "requeue": ("hpcrl.cli.requeue", "Let a run save and go back into Slurm's queue."),
    "diff": ("hpcrl.cli.diff", "Show how the recipes of two runs differ."),
    "doctor": ("hpcrl.cli.doctor", "Check this machine: packages, GPUs, Slurm, file system, ports."),
    "roles": ("hpcrl.cli.roles", "List the roles that a recipe can use."),
    "site": ("hpcrl.cli.site", "List, check and show the site profiles of clusters."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]}.command is no click command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; the error for an unknown command lists the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from hpcrl.config.nearest import nearest

            ctx.fail(f"no command {args[0]!r}; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, from their lines here."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hpcrl.__version__, prog_name="hpcrl")
def cli() -> None:
    """Train language models with reinforcement learning on Slurm clusters, or on this machine."""


def main() -> None:
    """Entry point. Exit code 2 where a check failed and nothing was started, 1 for every other error of hpcrl's own."""
    try:
        cli(prog_name="hpcrl")
    except CheckFailed as failed:
        click.echo(f"hpcrl: {failed}", err=True)
        sys.exit(2)
    except HpcrlError as error:
        click.echo(f"hpcrl: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
