"""``hpcrl diff``: what two runs were told to do differently."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.command("diff")
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def command(run_a: Path, run_b: Path, as_json: bool) -> None:
    """Show where the resolved recipes of RUN_A and RUN_B differ.

    Each is a run directory or a recipe.json. Exit code 0 when they are equal, 1 when they differ, 2 when one cannot be read.
    """
    from hpcrl.config.diff import diff, read_resolved
    from hpcrl.run.errors import CheckFailed

    try:
        found = diff(read_resolved(run_a), read_resolved(run_b))
    except CheckFailed as error:
        click.echo(f"hpcrl: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps([{"kind": item.kind, **asdict(item)} for item in found], indent=2))
    elif not found:
        click.echo("no difference")
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for heading in ("field", "difference", str(run_a), str(run_b)):
            table.add_column(heading, overflow="fold")
        for item in found:
            a, b = _text(item.a) if item.in_a else "", _text(item.b) if item.in_b else ""
            # Text, since values may hold brackets, which rich reads as markup.
            table.add_row(Text(item.path), item.kind, Text(a), Text(b))
        Console().print(table)
    sys.exit(1 if found else 0)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
