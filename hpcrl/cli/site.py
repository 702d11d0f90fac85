"""``hpcrl site``: the profiles of clusters that hpcrl knows."""

from __future__ import annotations

import click


@click.group()
def command() -> None:
    """The site profiles: what each cluster wants said in a job script."""


@command.command("list")
def list_sites() -> None:
    """List every profile and its file."""
    from hpcrl.launch.site import known_sites

    known = known_sites()
    width = max((len(name) for name in known), default=0)
    for name, path in sorted(known.items()):
        click.echo(f"{name:<{width}}  {path}")


@command.command("show")
@click.argument("name", required=False)
def show(name: str | None) -> None:
    """Check a profile and print it as it is understood, defaults included, as JSON.

    NAME is a profile, or the path of a TOML file; without it, the profile `default`.
    """
    from hpcrl.launch.site import find_site

    click.echo(find_site(name).to_json(), nl=False)
