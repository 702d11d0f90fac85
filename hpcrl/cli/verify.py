"""``hpcrl verify``: proves from a run's history that no row was lost or trained twice."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hpcrl.launch.find import find_run
from hpcrl.run.directory import RunDirectory

if TYPE_CHECKING:
    from hpcrl.cli.evidence import Evidence
    from hpcrl.dataplane.verify.found import Violation
    from hpcrl.dataplane.verify.report import StreamFigures

LIVE = "no end of the newest attempt is recorded, so the run may be going on: what is there so far was checked"


@click.command("verify")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def command(run: str, as_json: bool) -> None:
    """Prove from the history of RUN, a directory or a name, that each row was trained once and none was lost.

    Exit code 0 when every rule holds, 1 when one does not, 2 when the history is missing or has gaps.
    """
    from hpcrl.cli.evidence import examine

    held = find_run(run)
    evidence = examine(held)
    click.echo(json.dumps(to_json(held, evidence), indent=2) if as_json else render(held, evidence))
    sys.exit(2 if evidence.report.missing else 0 if evidence.report.clean else 1)


def to_json(run: RunDirectory, evidence: Evidence) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "live": evidence.live,
        "clean": evidence.report.clean,
        "bytes": evidence.bytes,
        "bytes_per_row": _per_row(evidence),
        "repeated": evidence.repeated,
        **evidence.report.to_json(),
    }


def render(run: RunDirectory, evidence: Evidence) -> str:
    """The outcome as lines of text."""
    from hpcrl.dataplane.verify.found import KEPT, RULES

    report = evidence.report
    size = f"{_per_row(evidence):.1f} bytes a row" if report.rows else f"{evidence.bytes} bytes"
    lines = [
        f"{click.style(run.path.name, bold=True)}  run {run.run_id}",
        f"{_count(report.rows, 'row')} in {_count(report.attempts, 'attempt')}, {_count(report.events, 'event')}, {size}",
        *(f"stream {name}: {_figures(figures)}" for name, figures in report.streams.items()),
        *([LIVE] if evidence.live else []),
        "",
    ]
    checked = _checked(list(report.streams.values()), report.events)
    for rule, says in RULES.items():
        count = report.counts[rule]
        mark = click.style("FAIL", fg="red") if count else click.style("ok  ", fg="green")
        lines.append(f"{mark}  {rule:<8}  {says} ({f'{count:,} violations, ' if count else ''}{checked[rule]})")
    if report.missing:
        lines += [
            "",
            "the history is not complete, so this proves nothing; missing:",
            *(f"  {line}" for line in report.missing),
        ]
    if report.violations:
        lines += ["", "violations:"]
        for item in report.violations:
            lines += [f"  {item.rule}: {item}", *_where(run, item)]
        hidden = sum(max(0, count - KEPT) for count in report.counts.values())
        if hidden:
            lines.append(f"  and {hidden:,} more of the same rules")
    return "\n".join(lines)


def _where(run: RunDirectory, item: Violation) -> list[str]:
    """Where a person reads on."""
    parts = [] if item.t is None else [f"at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(item.t))}"]
    if item.attempt is not None and item.who:
        logs = run.path / f"attempt_{item.attempt}" / "logs"
        paths = (logs / f"{item.who}.log", logs / "in_process.log")
        parts += [f"read {path}" for path in paths if path.exists()][:1]
    return [f"    {', '.join(parts)}"] if parts else []


def _checked(streams: list[StreamFigures], events: int) -> dict[str, str]:
    """What each rule was held against."""
    produced, trained = sum(item.produced for item in streams), sum(item.trained for item in streams)
    gone = sum(item.cleared + sum(item.dropped.values()) for item in streams)
    rows = {
        "ids": produced,
        "leases": sum(item.leased for item in streams),
        "held": sum(item.leased for item in streams),
        "filled": sum(item.filled for item in streams),
        "once": trained,
        "lost": gone,
        "versions": trained,
        "lag": trained,
        "pacing": produced,
    }
    return {
        **{rule: _count(number, "row") for rule, number in rows.items()},
        "lives": _count(events, "event"),
        "prompts": _count(sum(item.prompts for item in streams), "prompt"),
        "commits": _count(sum(item.steps for item in streams), "step"),
    }


def _figures(item: StreamFigures) -> str:
    parts = [f"{item.produced:,} produced", f"{item.settled:,} trained for good"]
    if item.in_doubt:
        parts.append(f"{item.in_doubt:,} trained and not acknowledged")
    if item.waiting:
        parts.append(f"{item.waiting:,} waiting")
    parts += [f"{rows:,} dropped ({reason})" for reason, rows in sorted(item.dropped.items())]
    if item.discarded:
        parts.append(f"{item.discarded:,} discarded with an attempt")
    return ", ".join(parts)


def _per_row(evidence: Evidence) -> float | None:
    return round(evidence.bytes / evidence.report.rows, 2) if evidence.report.rows else None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
