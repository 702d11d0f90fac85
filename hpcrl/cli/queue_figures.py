"""Figures of a run's queue for people, as tables, and for Prometheus, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Figures = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Rates:
    """Of a stream [rows/s]: put into it; acknowledged or dropped out of it."""

    rows_in: float
    rows_out: float


def rates(before: Figures, after: Figures, seconds: float) -> dict[str, Rates]:
    """By stream, from two looks so far apart."""
    found = {}
    for name, figures in after.items():
        old, new = before[name]["counters"], figures["counters"]
        found[name] = Rates((new["produced"] - old["produced"]) / seconds, (_out(new) - _out(old)) / seconds)
    return found


def table(figures: Figures, of: Mapping[str, Rates]) -> Table:
    """A block of lines for each stream."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for heading in ("stream", "", ""):
        made.add_column(heading, overflow="fold")
    for name, stream in figures.items():
        for number, (what, text) in enumerate(_lines(stream, of.get(name))):
            made.add_row(f"[bold]{name}[/bold]" if number == 0 else "", f"[dim]{what}[/dim]", text)
    return made


def prometheus(run: str, figures: Figures) -> str:
    """Prometheus' text format 0.0.4."""
    lines: list[str] = []
    for metric, (kind, says) in _METRICS.items():
        name = f"hpcrl_queue_{metric}"
        lines += [f"# HELP {name} {says}", f"# TYPE {name} {kind}"]
        for stream, found in figures.items():
            for labels, value in _samples(metric, found):
                pairs = {"run": run, "stream": stream, **labels}
                lines.append(f"{name}{{{','.join(f'{key}={_quoted(text)}' for key, text in pairs.items())}}} {value:g}")
    return "\n".join(lines) + "\n"


# Name without prefix: type, help.
_METRICS = {
    "rows": ("gauge", "Rows that live in the stream."),
    "bytes": ("gauge", "Bytes of all their columns."),
    "column_rows": ("gauge", "Live rows that have the column."),
    "oldest_seconds": ("gauge", "Age of the oldest row."),
    "untrained_rows": ("gauge", "Rows that count against the capacity."),
    "untrained_bytes": ("gauge", "Bytes that count against the capacity."),
    "capacity_rows": ("gauge", "Untrained rows at which producers wait."),
    "capacity_bytes": ("gauge", "Untrained bytes at which producers wait."),
    "waiting_producers": ("gauge", "Producers that wait for room."),
    "unread_rows": ("gauge", "Rows that the group has not asked for: its lag."),
    "leased_rows": ("gauge", "Rows that the group has under lease."),
    "held_rows": ("gauge", "Rows under lease by who holds them."),
    "produced_rows_total": ("counter", "Rows that were put."),
    "produced_bytes_total": ("counter", "Bytes that were put."),
    "trained_rows_total": ("counter", "Rows that were trained."),
    "cleared_rows_total": ("counter", "Rows whose final reader acknowledged them."),
    "expired_rows_total": ("counter", "Rows that were given out again because a lease ran out."),
    "dropped_rows_total": ("counter", "Rows that were dropped untrained."),
}
_TOTALS = {"produced_rows": "produced", "produced_bytes": "produced_bytes", "trained_rows": "trained"}


def _samples(metric: str, stream: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
    counters = stream["counters"]
    if metric == "column_rows":
        yield from (({"column": column}, rows) for column, rows in stream["rows_with"].items())
    elif metric in ("unread_rows", "leased_rows"):
        key = metric.removesuffix("_rows")
        yield from (({"group": group}, found[key]) for group, found in stream["groups"].items())
    elif metric == "held_rows":
        yield from (({"holder": holder}, rows) for holder, rows in _by_group(stream["holders"]).items())
    elif metric == "dropped_rows_total":
        yield from (({"reason": reason}, rows) for reason, rows in counters["dropped"].items())
    elif metric.endswith("_total"):
        name = metric.removesuffix("_total")
        yield {}, counters[_TOTALS.get(name, name.removesuffix("_rows"))]
    elif metric == "oldest_seconds":
        yield {}, stream["oldest_s"]
    elif metric == "waiting_producers":
        yield {}, len(stream["waiting"])
    else:
        yield {}, stream[metric]


def _by_group(holders: Mapping[str, int]) -> dict[str, int]:
    """Draws have a new number at every step, which must not be a new time series."""
    found: dict[str, int] = {}
    for holder, rows in holders.items():
        name = f"draws of {holder.rpartition(' of ')[2]}" if holder.startswith("draw ") else holder
        found[name] = found.get(name, 0) + rows
    return found


def _lines(stream: Mapping[str, Any], of: Rates | None) -> Iterator[tuple[str, str]]:
    counters = stream["counters"]
    yield "rows", f"{stream['rows']:,} in {stream['blocks']:,} blocks, {_bytes(stream['bytes'])}"
    if stream["blocks"]:
        yield "oldest", f"{stream['oldest_s']:.1f} s"
    if of is not None:
        yield "rate", f"in {of.rows_in:,.1f} rows/s, out {of.rows_out:,.1f} rows/s"
    yield (
        "room",
        f"{stream['untrained_rows']:,} of {stream['capacity_rows']:,} rows and {_bytes(stream['untrained_bytes'])} of "
        f"{_bytes(stream['capacity_bytes'])} are untrained",
    )
    if stream["waiting"]:
        yield "waiting", f"{', '.join(stream['waiting'])}, for room"
    yield "columns", ", ".join(f"{column} {rows:,}" for column, rows in stream["rows_with"].items())
    for group, found in stream["groups"].items():
        yield f"reader {group}", f"{found['unread']:,} unread, {found['leased']:,} leased, {found['done']:,} done"
    if stream["holders"]:
        yield "leases", ", ".join(f"{holder} {rows:,}" for holder, rows in stream["holders"].items())
    yield (
        "so far",
        f"{counters['produced']:,} put ({_bytes(counters['produced_bytes'])}), {counters['trained']:,} trained, "
        f"{counters['cleared']:,} cleared, {counters['expired']:,} given out again",
    )
    if counters["dropped"]:
        yield "dropped", ", ".join(f"{rows:,} ({reason})" for reason, rows in counters["dropped"].items())
    if stream["closed"]:
        yield "closed by", ", ".join(stream["closed"])


def _out(counters: Mapping[str, Any]) -> int:
    return int(counters["cleared"] + sum(counters["dropped"].values()))


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
