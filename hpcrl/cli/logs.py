"""``hpcrl logs``: the logs of a run's processes, one or all, and what comes to them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from hpcrl.cli.attempts import find_attempt
from hpcrl.config.nearest import nearest
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecords
from hpcrl.tracking.state import logs, processes

FOLLOW_S = 0.25
CHUNK = 65_536
COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("process", required=False)
@click.option("-f", "--follow", is_flag=True, help="Show new lines as they come, until the processes have ended.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Last lines of each log.")
@click.option("--attempt", type=int, default=None, help="Which attempt; the newest if left out.")
def command(run: Path, process: str | None, follow: bool, lines: int, attempt: int | None) -> None:
    """Show the logs of the run in directory RUN: of all processes, of a GROUP, or of one GROUP.RANK."""
    held = find_attempt(run, attempt)
    if not follow or process is not None:
        check(held, process)
    shower = Shower(held, process, lines)
    shower.show()
    while follow and not shower.ended():
        time.sleep(FOLLOW_S)
        shower.show()


def check(attempt: Attempt, process: str | None) -> None:
    """Raise :class:`CheckFailed` if nothing that has a log goes by that name."""
    names = logs(attempt)
    if not names:
        raise CheckFailed([f"attempt {attempt.number} of run {attempt.run.path} has no logs yet"])
    if not any(matches(name, process) for name in names):
        known = {*names, *(name.rpartition(".")[0] for name in names if "." in name)}
        where = f"attempt {attempt.number} of run {attempt.run.path}"
        raise CheckFailed([f"{where} has no log of {process!r}; {nearest(str(process), known)}"])


def matches(name: str, process: str | None) -> bool:
    """Whether a log's name is the process asked for, or of the group asked for."""
    return process is None or process in (name, name.rpartition(".")[0])


class Shower:
    """Writes what is new in the logs that match, with the process's name before each line when there are several."""

    def __init__(self, attempt: Attempt, process: str | None, lines: int) -> None:
        self._attempt, self._process, self._lines = attempt, process, lines
        self._offsets: dict[str, int] = {}
        self._first = True
        self._prefix = len(self._names()) != 1

    def show(self) -> None:
        """Write what came since the last call; at the first, the last lines of each log."""
        names = self._names()
        # One that appears later is new from its first line on.
        self._prefix = self._prefix or len(names) > 1
        for name in names:
            path = self._attempt.log(name)
            if self._first:
                self._offsets[name] = tail_offset(path, self._lines)
            self._write(name, path)
        self._first = False

    def ended(self) -> bool:
        """Whether every process that is followed has left its record (of an ignitor: every process of the run)."""
        records = DoneRecords(self._attempt).read()
        roles = processes(self._attempt)
        wanted = [name for name in roles if matches(name, self._process)] or roles
        ended = bool(wanted) and all(name in records for name in wanted)
        if ended:
            self.show()
        return ended

    def _names(self) -> list[str]:
        return [name for name in logs(self._attempt) if matches(name, self._process)]

    def _write(self, name: str, path: Path) -> None:
        start = self._offsets.get(name, 0)
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
        # While a log is followed, half a line waits for its end.
        end = len(data) if self._first else data.rfind(b"\n") + 1
        self._offsets[name] = start + end
        text = data[:end].decode(errors="replace")
        if not self._prefix:
            click.echo(text, nl=bool(text) and not text.endswith("\n"))
            return
        color = COLORS[sum(name.encode()) % len(COLORS)]
        label = click.style(f"{name} | ", fg=color)
        for line in text.splitlines():
            click.echo(label + line)
        sys.stdout.flush()


def tail_offset(path: Path, lines: int) -> int:
    """Where the last lines of a file begin [bytes]; reads the file from its end, only as far as needed."""
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        if lines == 0:
            return end
        position, found = end, 0
        while position > 0:
            begin = max(0, position - CHUNK)
            file.seek(begin)
            block = file.read(position - begin)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                if begin + at + 1 == end:
                    continue
                found += 1
                if found == lines:
                    return begin + at + 1
            position = begin
    return 0
