"""``hpcrl status``: where a run is, what each process is at, and what failed first."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hpcrl.cli.attempts import attempt_of
from hpcrl.launch.find import find_run
from hpcrl.launch.jobs import is_cluster_run
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.standing import joined_in_words
from hpcrl.launch.survey import Surveyed, survey
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.handovers import HandoverSummary
from hpcrl.tracking.overview import Overview, ProcessState, Watcher

if TYPE_CHECKING:
    from hpcrl.run.directory import Attempt

WATCH_S = 1.0
# The controller is shared with everybody.
ASK_SLURM_S = 15.0
COLORS = {
    "waiting": "bright_black",
    "running": "cyan",
    "done": "green",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
}
# Node and GPUs of a process, by its name.
Places = Mapping[str, tuple[str, str]]


@click.command()
@click.argument("run")
@click.option("--attempt", type=int, default=None, help="Which attempt; the newest if left out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table (one a line with --watch).")
@click.option("--watch", is_flag=True, help="Look again every second until the run has ended.")
def command(run: str, attempt: int | None, as_json: bool, watch: bool) -> None:
    """Show where RUN, a directory or a name, is: its job, its last step, the state of each process, and what failed."""
    eye = Eye(find_run(run), attempt)
    shown = ""
    while True:
        view, job = eye.look()
        text = json.dumps(to_json(view, job, eye.places), indent=None if watch else 2) if as_json else eye.text(view, job)
        if watch and not as_json and sys.stdout.isatty():
            click.clear()
            click.echo(text)
        elif text != shown:
            click.echo(text)
        shown = text
        if not watch or is_over(view, job):
            return
        time.sleep(WATCH_S)


class Eye:
    """Looks at a run again and again: at its newest attempt, unless one is named, and at its job."""

    def __init__(self, run: RunDirectory, number: int | None) -> None:
        self._run, self._number = run, number
        self._watcher: Watcher | None = None
        self._attempt: Attempt | None = None
        self._job: Surveyed | None = None
        self._asked = -ASK_SLURM_S
        self.places: Places = {}

    def look(self) -> tuple[Overview | None, Surveyed | None]:
        """The attempt, None before there is one; and the job, None of a run on one machine.

        Raises:
            CheckFailed: there is no such attempt, nor a job that will make one.
        """
        on_cluster = is_cluster_run(self._run)
        view = None
        if self._number is not None or not on_cluster or self._run.attempts():
            attempt = attempt_of(self._run, self._number)
            if attempt != self._attempt:
                self._attempt, self._watcher = attempt, Watcher(attempt)
                self._asked = -ASK_SLURM_S
            if self._watcher is not None:
                view = self._watcher.look(time.time())
            self.places = places(attempt)
        ended = view is not None and view.state != "running" and self._job is not None and not self._job.standing.is_over
        if on_cluster and (ended or time.monotonic() - self._asked > ASK_SLURM_S):
            self._job, self._asked = survey([self._run], Slurm())[0], time.monotonic()
        return view, self._job

    def text(self, view: Overview | None, job: Surveyed | None) -> str:
        """Both as lines of text."""
        lines = [] if job is None else _job_lines(job)
        return "\n".join([*lines, *([render(view, self.places)] if view is not None else [])])


def is_over(view: Overview | None, job: Surveyed | None) -> bool:
    """Whether nothing further happens by itself."""
    if job is not None:
        return job.standing.is_over
    return view is None or view.state != "running"


def to_json(view: Overview | None, job: Surveyed | None, where: Places) -> dict[str, Any]:
    """Everything as plain data."""
    value: dict[str, Any] = {} if view is None else view.to_json()
    value["places"] = {name: {"node": node, "gpus": gpus} for name, (node, gpus) in where.items()}
    return value if job is None else {**value, "job": job.to_json()}


def places(attempt: Attempt) -> Places:
    """Where the attempt's plan puts each process; empty before there is a plan."""
    try:
        planned = json.loads((attempt.path / "plan.json").read_text())["processes"]
        return {f"{item['group']}.{item['rank']}": (str(item["node"]), ",".join(map(str, item["gpus"]))) for item in planned}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def render(view: Overview, where: Places | None = None) -> str:
    """The view as lines of text; click takes the colours away where there is no terminal."""
    lines = [
        f"{click.style(view.name, bold=True)}  run {view.run_id}  attempt {view.attempt}  {_colored(view.state, view.state)}"
    ]
    lines += [_step(view), ""]
    rows: list[tuple[str, ...]]
    rows = [("PROCESS", "STATE", "DOING", "HEARD", "HOST", "GPUS"), *(_row(item, where or {}) for item in view.processes)]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    # A machine without GPUs needs no column for them.
    if not any(row[5] for row in rows[1:]):
        rows, widths = [row[:5] for row in rows], widths[:5]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[1] = _colored(cells[1], row[1])
        lines.append("  ".join(cells).rstrip())
    if view.handovers:
        lines += ["", *map(_handover, view.handovers)]
    if view.failure is not None:
        lines += ["", *_failure(view.failure)]
    return "\n".join(lines)


def _job_lines(job: Surveyed) -> list[str]:
    number = "no job" if job.job_id is None else f"job {job.job_id}"
    state = click.style(job.standing.word, fg="red" if job.standing.word in ("failed", "lost") else "cyan", bold=True)
    lines = [f"{click.style(job.run.path.name, bold=True)}  {number}  {state}"]
    if job.standing.why:
        lines.append(f"  {job.standing.why}")
    if job.job is not None and job.job.is_active and job.job.nodes:
        lines.append(f"  on {', '.join(job.job.nodes)} in partition {', '.join(job.job.partitions)}")
    lines += [f"  joined by {joined_in_words(name, item)}" for name, item in job.joined.items()]
    log = job.run.path / "slurm" / f"{job.job_id}.log"
    if log.exists():
        lines.append(f"  the job's own log: {log}")
    return [*lines, ""]


def _step(view: Overview) -> str:
    # Imported here: the figures' line lives with the terminal view, which brings rich.
    from hpcrl.tracking.view import duration, plain_line

    if view.last is None or view.last_age_s is None:
        return f"no step yet, {view.total} planned" if view.total is not None else "no step yet"
    return f"{plain_line(view.last, view.total or view.last.step)}  ({duration(view.last_age_s)} ago)"


def _row(item: ProcessState, where: Places) -> tuple[str, ...]:
    from hpcrl.tracking.view import duration

    if item.state == "failed":
        doing = f"code {item.code}"
    elif item.state in ("done", "stopped") or item.phase is None:
        doing = ""
    else:
        doing = item.phase if item.step is None else f"{item.phase} step {item.step}"
    if item.restarts:
        doing = f"{doing}, " * bool(doing) + f"restarted {item.restarts}x after {item.killed_by}"
    heard = "" if item.age_s is None else f"{duration(item.age_s)} ago"
    node, gpus = where.get(item.process, ("", ""))
    return item.process, item.state, doing, heard, node or item.host or "", gpus


def _handover(item: HandoverSummary) -> str:
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in item.parts.items())
    return (
        f"ring {item.ring}: {item.giver} to {item.taker} {item.seconds:.3f} s ({parts}), "
        f"{item.freed_bytes / (1 << 20):,.1f} MiB let go of; {item.count} times"
    )


def _failure(item: ProcessState) -> list[str]:
    error = (item.error or "no message").strip()
    lines = [click.style(f"{item.process} on {item.host} failed first, with code {item.code}:", fg="red")]
    lines += [f"  {line}" for line in error.splitlines()]
    if item.log is not None:
        lines.append(f"read {item.log}")
    return lines


def _colored(text: str, state: str) -> str:
    return click.style(text, fg=COLORS.get(state))
