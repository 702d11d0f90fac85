"""The options by which a person says what a job is to be like, of the commands that queue one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option("--nodes", type=int, help="Nodes that hold roles [as many as the recipe needs]."),
    click.option("--gpus-per-node", type=int, help="The most GPUs to use of a node [what the site's nodes have]."),
    click.option("--time", metavar="T", help="Time limit, as Slurm writes it [the site's]."),
    click.option(
        "--partition",
        "partitions",
        multiple=True,
        metavar="[COMPONENT=]P",
        help="Partition for all of the run [the site's], or for one component, such as inference=spot; repeatable.",
    ),
    click.option("--layout", type=click.Choice(["auto", "het", "single"]), help="One allocation or several components [auto]."),
    click.option("--spares", type=int, help="Idle nodes that replace lost ones [0]."),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options, as keywords for :func:`asked_fields`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked_fields(*, partitions: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """What was given, as fields of :class:`hpcrl.launch.layout.Asked`."""
    fields = {name: value for name, value in given.items() if value is not None}
    named = {component: name for component, separator, name in (part.partition("=") for part in partitions) if separator}
    plain = [part for part in partitions if "=" not in part]
    return fields | ({"partitions": named} if named else {}) | ({"partition": plain[-1]} if plain else {})
