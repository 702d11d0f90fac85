"""How the state of a run looks on a terminal and in a plain line. Pure: a snapshot in, something printable out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcrl.tracking.figures import Phase, StepFigures
from hpcrl.tracking.state import by_rank

BARS = "▁▂▃▄▅▆▇█"
# More processes than this are shown a line a group.
MOST_PROCESSES = 10
QUIET_S = 60.0
# Figures of a plain line: (name in the line, figure, format).
LINE = (
    ("reward", "reward", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("grad_norm", "grad_norm", "{:.3g}"),
    ("tokens/s", "tokens_per_s", "{:.1f}"),
    ("lag", "version_lag", "{:.2f}"),
    ("queue", "queue_rows", "{:.0f}"),
    ("step_s", "step_s", "{:.2f}"),
    ("wait_s", "wait_s", "{:.2f}"),
)


@dataclass(frozen=True)
class Snapshot:
    """What there is to show.

    Attributes:
        total: steps planned.
        steps: every step that counts, of earlier attempts too.
        phases: newest phase of each process of this attempt.
        groups: names of the recipe's groups, in its order.
        started: when this attempt began, Unix time [s].
    """

    name: str
    attempt: int
    total: int
    steps: Sequence[StepFigures]
    phases: Mapping[str, Phase]
    groups: tuple[str, ...]
    started: float
    now: float


def plain_line(step: StepFigures, total: int) -> str:
    """One step in a line that greps well: ``step 3/20 reward 0.234 loss …``. ASCII only; figures that lack are left out."""
    parts = [f"step {step.step}/{total}"]
    parts += [f"{name} {form.format(value)}" for name, key, form in LINE if (value := step.get(key)) is not None]
    return " ".join(parts)


def panel(shot: Snapshot, console: Console) -> RenderableType:
    """The live view at the console's width."""
    inside = max(8, console.width - 6)
    parts: list[RenderableType] = [_head(shot, inside)]
    if figures := _figures(shot, inside):
        parts.append(figures)
    parts.append(_roles(shot))
    title = f"{shot.name} · attempt {shot.attempt}" if shot.attempt > 1 else shot.name
    return Panel(
        Group(*parts),
        title=Text(title, style="bold"),
        box=box.ROUNDED,
        border_style="bright_black",
        padding=(0, 1),
        width=max(12, min(console.width, 110)),
    )


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Values as bars between their least and their greatest; where more than fit, neighbours share a bar (their mean)."""
    held = [value for value in values if value is not None]
    if not held or width < 1:
        return ""
    if len(held) > width:
        edges = [round(i * len(held) / width) for i in range(width + 1)]
        held = [sum(held[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(held), max(held)
    span = high - low
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] if span else BARS[0] for value in held)


def duration(seconds: float) -> str:
    """A time for a person: ``42 s``, ``3 m 05 s``, ``2 h 07 m``, ``3 d 04 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def time_left(steps: Sequence[StepFigures], attempt: int, total: int, now: float) -> float | None:
    """Seconds until the last step, from the pace of the last ten steps of this attempt; None while there is no pace."""
    times = [step.t for step in steps if step.attempt == attempt][-11:]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    pace = (times[-1] - times[0]) / (len(times) - 1)
    since = min(pace, max(0.0, now - times[-1]))
    return max(0.0, (total - steps[-1].step) * pace - since)


def _head(shot: Snapshot, inside: int) -> RenderableType:
    done = shot.steps[-1].step if shot.steps else 0
    left = time_left(shot.steps, shot.attempt, shot.total, shot.now)
    ran = duration(shot.now - shot.started)
    if done >= shot.total:
        clock = f"done in {ran}"
    elif left is None:
        clock = f"{ran} so far"
    else:
        clock = f"{ran} so far, {duration(left)} left"
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(no_wrap=True)
    if inside >= 60:
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(max(1, shot.total), min(done, shot.total), complete_style="cyan", finished_style="green")
        head.add_row(Text(f"step {done}/{shot.total}", style="bold cyan"), bar, Text(clock))
    else:
        head.add_row(Text.assemble((f"step {done}/{shot.total}", "bold cyan"), f"  {clock}"))
    return head


def _figures(shot: Snapshot, inside: int) -> RenderableType | None:
    if not shot.steps:
        return None
    last = shot.steps[-1]
    rewards = [step.get("reward") for step in shot.steps]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("reward ", style="dim")
    line.append(_number(last.get("reward"), "{:.3f}"), style="bold green")
    line.append(f"  {sparkline(rewards, min(40, inside - 16))}", style="green")
    held = [value for value in rewards if value is not None]
    if len(held) > 1 and inside >= 76:
        line.append(f"  {held[0]:.3f} first, {max(held):.3f} best", style="dim")
    small = Table.grid(padding=(0, 2))
    names = (
        ("tokens/s", "tokens_per_s", "{:,.1f}"),
        ("version lag", "version_lag", "{:.2f}"),
        ("queue rows", "queue_rows", "{:.0f}"),
        ("s/step", "step_s", "{:.2f}"),
        ("waiting", "wait_s", "{:.2f} s"),
        ("length", "response_tokens", "{:.1f}"),
        ("grad norm", "grad_norm", "{:.3g}"),
    )
    cells = [
        Text.assemble((f"{name} ", "dim"), _number(last.get(key), form), no_wrap=True)
        for name, key, form in names
        if last.get(key) is not None
    ]
    columns = max(1, inside // 20)
    for begin in range(0, len(cells), columns):
        small.add_row(*cells[begin : begin + columns])
    return Group(line, small) if cells else line


def _roles(shot: Snapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, justify="right")
    processes: dict[str, list[str]] = defaultdict(list)
    for name in sorted(shot.phases, key=by_rank):
        processes[name.rpartition(".")[0]].append(name)
    apart = len(shot.phases) <= MOST_PROCESSES
    for group in dict.fromkeys((*shot.groups, *processes)):
        names = processes.get(group, [])
        if not names:
            table.add_row(group, Text("not up yet", style="dim"), "")
        elif apart or len(names) == 1:
            for name in names:
                phase = shot.phases[name]
                table.add_row(name, _phase(phase), _ago(shot.now - phase.t))
        else:
            counts = Counter(shot.phases[name].name for name in names)
            doing = ", ".join(f"{count} {name}" for name, count in counts.most_common())
            table.add_row(f"{group} x{len(names)}", doing, _ago(max(shot.now - shot.phases[name].t for name in names)))
    return table


def _phase(phase: Phase) -> Text:
    text = Text(phase.name)
    if phase.step is not None:
        text.append(f" step {phase.step}", style="dim")
    return text


def _ago(seconds: float) -> Text:
    text = "now" if seconds < 1 else f"{duration(seconds)} ago"
    return Text(text, style="yellow" if seconds > QUIET_S else "dim")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else form.format(value)
