"""``hpcrl status``: where a run is, what each process is at, and what failed first."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from hpcrl.cli.attempts import find_attempt
from hpcrl.tracking.overview import Overview, ProcessState, Watcher

WATCH_S = 1.0
COLORS = {
    "waiting": "bright_black",
    "running": "cyan",
    "done": "green",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--attempt", type=int, default=None, help="Which attempt; the newest if left out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table (one a line with --watch).")
@click.option("--watch", is_flag=True, help="Look again every second until the run has ended.")
def command(run: Path, attempt: int | None, as_json: bool, watch: bool) -> None:
    """Show where the run in directory RUN is: its last step, the state of each process, and what failed."""
    watcher = Watcher(find_attempt(run, attempt))
    shown = ""
    while True:
        view = watcher.look(time.time())
        text = json.dumps(view.to_json(), indent=None if watch else 2) if as_json else render(view)
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
            click.echo(text)
        elif text != shown:
            click.echo(text)
        shown = text
        if not watch or view.state != "running":
            return
        time.sleep(WATCH_S)


def render(view: Overview) -> str:
    """The view as lines of text; click takes the colours away where there is no terminal."""
    lines = [
        f"{click.style(view.name, bold=True)}  run {view.run_id}  attempt {view.attempt}  {_colored(view.state, view.state)}"
    ]
    lines += [_step(view), ""]
    rows = [("PROCESS", "STATE", "DOING", "HEARD", "HOST"), *(_row(item) for item in view.processes)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[1] = _colored(cells[1], row[1])
        lines.append("  ".join(cells).rstrip())
    if view.failure is not None:
        lines += ["", *_failure(view.failure)]
    return "\n".join(lines)


def _step(view: Overview) -> str:
    # Imported here: the figures' line lives with the terminal view, which brings rich.
    from hpcrl.tracking.view import duration, plain_line

    if view.last is None or view.last_age_s is None:
        return f"no step yet, {view.total} planned" if view.total is not None else "no step yet"
    return f"{plain_line(view.last, view.total or view.last.step)}  ({duration(view.last_age_s)} ago)"


def _row(item: ProcessState) -> tuple[str, str, str, str, str]:
    from hpcrl.tracking.view import duration

    if item.state == "failed":
        doing = f"code {item.code}"
    elif item.state in ("done", "stopped") or item.phase is None:
        doing = ""
    else:
        doing = item.phase if item.step is None else f"{item.phase} step {item.step}"
    heard = "" if item.age_s is None else f"{duration(item.age_s)} ago"
    return item.process, item.state, doing, heard, item.host or ""


def _failure(item: ProcessState) -> list[str]:
    error = (item.error or "no message").strip()
    lines = [click.style(f"{item.process} on {item.host} failed first, with code {item.code}:", fg="red")]
    lines += [f"  {line}" for line in error.splitlines()]
    if item.log is not None:
        lines.append(f"read {item.log}")
    return lines


def _colored(text: str, state: str) -> str:
    return click.style(text, fg=COLORS.get(state))
