"""``hpcrl doctor``: does this machine have what a run needs, and if not, what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpcrl.cli.checks.finding import Finding

COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("."),
    show_default=True,
    help="Directory on the file system that runs will be kept on.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of the findings.")
def command(folder: Path, as_json: bool) -> None:
    """Check Python, packages, GPUs, Slurm, the file system, ports and limits. Exit code 1 if a check fails."""
    from hpcrl.cli.checks.files import all_files
    from hpcrl.cli.checks.host import all_host
    from hpcrl.cli.checks.packages import all_packages

    sections = (
        ("Python and packages", all_packages),
        ("This host", all_host),
        (f"File system of {folder.absolute()}", lambda: all_files(folder)),
    )
    findings: list[Finding] = []
    for title, check in sections:
        found = check()
        findings += found
        if not as_json:
            click.secho(title, bold=True)
            click.echo("\n".join(line for finding in found for line in lines(finding)) + "\n")
    click.echo(json.dumps([finding.__dict__ for finding in findings], indent=2) if as_json else verdict(findings))
    sys.exit(int(any(finding.status == "fail" for finding in findings)))


def lines(finding: Finding) -> list[str]:
    """A finding as it is printed, with what to do on a line of its own."""
    status = click.style(f"{finding.status:<4}", fg=COLORS[finding.status])
    shown = [f"  {status}  {finding.name:<18}  {finding.what}"]
    if finding.do:
        shown.append(f"{'':<28}-> {finding.do}")
    return shown


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: whether hpcrl will work here."""
    failed = [finding.name for finding in findings if finding.status == "fail"]
    warned = [finding.name for finding in findings if finding.status == "warn"]
    if failed:
        return click.style(f"hpcrl will not work here until this is mended: {', '.join(failed)}", fg="red")
    if warned:
        return click.style(f"hpcrl works here; look at: {', '.join(warned)}", fg="yellow")
    return click.style("everything is as it should be", fg="green")
