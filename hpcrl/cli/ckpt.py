"""``hpcrl ckpt``: the trainer's saves and the published policy versions of a run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hpcrl.cli.ckpt_look import Look

# Below this, files are read before a bar would be [bytes].
SHOW_PROGRESS = 1 << 30

_RUN = click.argument("run")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


@click.group()
def command() -> None:
    """Saves of the trainer's state and published policy versions: list, verify, show, prune, export."""


@command.command("list")
@_RUN
@_JSON
def list_(run: str, as_json: bool) -> None:
    """List the saves and policy versions of RUN, a directory or a name: whether they are whole, and why they are kept.

    Only manifests and the sizes of files are looked at; `hpcrl ckpt verify` reads everything.
    """
    from hpcrl.cli import ckpt_text

    look = _look(run)
    click.echo(json.dumps(ckpt_text.list_json(look), indent=2) if as_json else ckpt_text.list_text(look, time.time()))


@command.command("show")
@_RUN
@click.argument("what", metavar="STEP|VERSION")
@_JSON
def show(run: str, what: str, as_json: bool) -> None:
    """Show what a save or a policy version of RUN says of itself.

    12 is the newest save of step 12 and policy version 12; v12 is the version alone, step-00000012.a1.3 just that save.
    """
    import msgspec

    from hpcrl.cli import ckpt_text
    from hpcrl.cli.ckpt_look import find_save, find_version
    from hpcrl.run.errors import CheckFailed

    look = _look(run)
    said: dict[str, Any] = {}
    lines: list[str] = []
    missing: list[str] = []
    for kind, wanted in (("save", not what.startswith("v")), ("version", not what.startswith("step-"))):
        if not wanted:
            continue
        try:
            if kind == "save":
                save = find_save(look, what)
                said["save"] = {**ckpt_text.save_json(save), "manifest": msgspec.to_builtins(save.manifest)}
                lines.append(
                    ckpt_text.show_save(save, save.manifest)
                    if save.manifest is not None
                    else f"save {save.name} is {save.state}{': ' * bool(save.problem)}{save.problem}"
                )
            else:
                version = find_version(look, what)
                said["version"] = {**ckpt_text.version_json(version), "record": msgspec.to_builtins(version.record)}
                lines.append(
                    ckpt_text.show_version(version, version.record)
                    if version.record is not None
                    else f"policy version {version.version} is damaged: {version.problem}"
                )
        except CheckFailed as failed:
            missing += failed.problems
    if not said:
        raise CheckFailed(missing)
    click.echo(json.dumps(said, indent=2) if as_json else "\n\n".join(lines))


@command.command("verify")
@_RUN
@click.option("--save", default=None, metavar="STEP", help="Only the newest save of this step, or the save of this name.")
@click.option("--version", type=int, default=None, metavar="V", help="Only this policy version, and what it is built on.")
@click.option("--all", "every", is_flag=True, help="Every save and version; so too without --save and --version.")
@_JSON
def verify(run: str, save: str | None, version: int | None, every: bool, as_json: bool) -> None:
    """Read saves and policy versions of RUN whole and compare them with what was written.

    Every file by size and checksum; every policy version put together out of its base and patches, by the hash that it was
    published with. Exit code 1 when something is damaged. What is unfinished is named, and is no error. Nothing is changed.
    """
    from hpcrl.cli import ckpt_verify

    if every and (save is not None or version is not None):
        raise click.UsageError("--all goes without --save and --version")
    look = _look(run)
    task = ckpt_verify.plan(look, save, version)
    with click.progressbar(length=task.bytes, label="bytes", file=sys.stderr, hidden=task.bytes < SHOW_PROGRESS) as bar:
        report = ckpt_verify.verify(look, task, bar.update)
    click.echo(json.dumps(ckpt_verify.to_json(look, report), indent=2) if as_json else ckpt_verify.to_text(look, report))
    sys.exit(1 if report.findings else 0)


@command.command("prune")
@_RUN
@click.option("--keep-last", type=click.IntRange(min=1), default=None, metavar="K", help="Keep so many newest of each.")
@click.option("--keep-every", type=click.IntRange(min=1), default=None, metavar="N", help="Keep multiples of this step too.")
@click.option("--best", default=None, metavar="METRIC", help="Keep the save with the highest; with - before it, the lowest.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--force", is_flag=True, help="The run does not live, whatever its records say: it was killed without a word.")
@_JSON
def prune(
    run: str, keep_last: int | None, keep_every: int | None, best: str | None, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Remove saves and policy versions of RUN that need not stay, by the trainer's own rules.

    Without --keep-last, --keep-every and --best: by the run's own settings. The newest whole save always stays, and so does
    what a version that stays is built on. Refused while the run lives, unless its trainer would remove the same.
    """
    from hpcrl.cli import ckpt_prune

    look = _look(run)
    plan = ckpt_prune.plan(look, keep_last=keep_last, keep_every=keep_every, best=best, force=force)
    problems = [] if dry_run else ckpt_prune.remove(look, plan)
    if as_json:
        click.echo(json.dumps(ckpt_prune.to_json(look, plan, problems, dry_run=dry_run), indent=2))
    else:
        click.echo(ckpt_prune.to_text(look, plan, dry_run=dry_run))
        for problem in problems:
            click.echo(f"hpcrl: {problem}", err=True)
    sys.exit(1 if problems else 0)


@command.command("export")
@_RUN
@click.option("--hf", "target", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to make.")
@click.option("--version", type=int, default=None, metavar="V", help="Policy version; the newest if left out.")
@click.option("--step", default=None, metavar="S", help="Out of the trainer's save of this step instead.")
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float32"]), default=None, help="With --step; as the run publishes if left out."
)
def export(run: str, target: Path, version: int | None, step: str | None, dtype: str | None) -> None:
    """Write weights of RUN as a plain Hugging Face folder: safetensors, configuration, tokenizer.

    Every tensor is checked while it is written. The folder appears when all of it is durable; after a kill the same command
    goes on with the files that were whole.
    """
    from hpcrl.checkpoint.export.folder import check_target
    from hpcrl.checkpoint.export.folder import export as write
    from hpcrl.cli import ckpt_export

    if version is not None and step is not None:
        raise click.UsageError("--version takes a published version and --step a save of the trainer: name one")
    if dtype is not None and step is None:
        raise click.UsageError("--dtype goes with --step: a published version is exported as it is")
    check_target(target, 0)
    look = _look(run)
    source = ckpt_export.version_source(look, version) if step is None else ckpt_export.save_source(look, step, dtype)
    size = sum(spec.nbytes for spec in source.specs.values())
    with click.progressbar(length=size, label="bytes", file=sys.stderr, hidden=size < SHOW_PROGRESS) as bar:
        found = write(source, target, progress=bar.update)
    click.echo(ckpt_export.done_text(look, source, target, found))


def _look(run: str) -> Look:
    from hpcrl.cli.ckpt_look import look_at
    from hpcrl.launch.find import find_run

    return look_at(find_run(run))
