"""The report as one page of HTML: no file beside it, no script, nothing fetched. Pure."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hpcrl.run.records import DoneRecord
from hpcrl.tracking.figures import OUTCOMES, Figures, StepFigures
from hpcrl.tracking.metrics import cut, settings
from hpcrl.tracking.report_style import COLORS, STYLE
from hpcrl.tracking.state import by_rank
from hpcrl.tracking.view import duration

# Tables of longer runs show about this many steps, evenly, the first and the last among them.
MOST_ROWS = 200
COLUMNS = (
    ("reward", "reward", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("grad norm", "grad_norm", "{:.3g}"),
    ("lr", "lr", "{:.2g}"),
    ("samples", "samples", "{:.0f}"),
    ("kept", "kept_samples", "{:.0f}"),
    ("length", "response_tokens", "{:.1f}"),
    ("tokens/s", "tokens_per_s", "{:,.1f}"),
    ("lag", "version_lag", "{:.2f}"),
    ("gap", "logprob_gap_mean", "{:.2g}"),
    ("clipped", "clip_fraction", "{:.2%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("step s", "step_s", "{:.2f}"),
)
PARTS = {
    "wait": "waiting for rows",
    "turn": "handing the GPUs on",
    "train": "training",
    "publish": "publishing weights",
    "rest": "everything else",
}


@dataclass(frozen=True)
class ReportFacts:
    """Everything that a report tells.

    Attributes:
        state: how the newest attempt ended.
        created: Unix time [s].
        total: planned steps.
        records: how the processes of the newest attempt ended.
        logs: of the newest attempt.
        recipe: the resolved recipe as JSON.
        picture: PNG.
    """

    name: str
    run_id: str
    path: Path
    attempts: list[int]
    state: str
    created: float | None
    total: int | None
    figures: Figures
    records: Mapping[str, DoneRecord]
    logs: Sequence[Path]
    recipe: Any
    picture: bytes


def page(facts: ReportFacts) -> str:
    """The whole page."""
    steps = facts.figures.steps()
    image = base64.b64encode(facts.picture).decode()
    sections = (
        _failures(facts.records),
        _section("Curves", f'<img class="curves" alt="Curves of the run" src="data:image/png;base64,{image}">'),
        _section("Where the seconds went", _time_split(steps)),
        _section("Rewards by outcome", _outcomes(steps)),
        _section("Steps", _steps(steps)),
        _section("Policy versions", _versions(facts.figures, steps)),
        _section("Processes and logs", _processes(facts)),
        _section("Recipe", _recipe(facts.recipe)),
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(facts.name)} · {escape(facts.run_id)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{_head(facts, steps)}
{"".join(sections)}
</main>
</body>
</html>
"""


def _head(facts: ReportFacts, steps: Sequence[StepFigures]) -> str:
    when = "" if facts.created is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts.created))
    attempts = "1 attempt" if len(facts.attempts) == 1 else f"{len(facts.attempts)} attempts"
    return f"""<header>
<div><h1>{escape(facts.name)}</h1><span class="badge {escape(facts.state)}">{escape(facts.state)}</span></div>
<p class="sub">run {escape(facts.run_id)} · {attempts} · created {when}<br><code>{escape(str(facts.path))}</code></p>
<div class="cards">{"".join(_card(name, value, note) for name, value, note in _summary(facts, steps))}</div>
</header>"""


def _summary(facts: ReportFacts, steps: Sequence[StepFigures]) -> list[tuple[str, str, str]]:
    figures = facts.figures
    span = None if figures.first_t is None or figures.last_t is None else figures.last_t - figures.first_t
    rewards = [value for step in steps if (value := step.get("reward")) is not None]
    last, first = rewards[-5:], rewards[:1]
    sum_of = {
        name: sum(step.get(name) or 0.0 for step in steps) for name in ("trained_tokens", "step_s", "samples", "kept_samples")
    }
    lags = [value for step in steps if (value := step.get("version_lag_max")) is not None]
    cards = [
        ("steps", f"{steps[-1].step if steps else 0}", "" if facts.total is None else f"of {facts.total}"),
        (
            "reward",
            _form(sum(last) / len(last) if last else None, "{:.3f}"),
            f"mean of the last {len(last)}, first {first[0]:.3f}" if rewards else "none reported",
        ),
        ("wall time", "-" if span is None else duration(span), "first to last record"),
        (
            "time per step",
            _form(sum_of["step_s"] / len(steps) if steps and sum_of["step_s"] else None, "{:.2f} s"),
            "mean",
        ),
        (
            "trained tokens/s",
            _form(sum_of["trained_tokens"] / sum_of["step_s"] if sum_of["step_s"] else None, "{:,.1f}"),
            f"{sum_of['trained_tokens']:,.0f} tokens in all",
        ),
        (
            "samples",
            f"{sum_of['samples']:,.0f}",
            f"{sum_of['kept_samples'] / sum_of['samples']:.0%} with a signal" if sum_of["samples"] else "",
        ),
    ]
    if lags:
        cards.append(("version lag", f"{max(lags):.0f}", "greatest"))
    return cards


def _card(name: str, value: str, note: str) -> str:
    return f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def _failures(records: Mapping[str, DoneRecord]) -> str:
    failed = sorted((record for record in records.values() if record.status == "failed"), key=lambda record: record.t)
    items = "".join(
        f"<div class='failure'><b>{escape(record.process)}</b> on {escape(record.host)}, code {record.code}"
        f"<pre>{escape(record.error)}</pre></div>"
        for record in failed
    )
    return _section("What failed first", items) if items else ""


def _time_split(steps: Sequence[StepFigures]) -> str:
    split = [(step.step, step.split) for step in steps if step.split]
    if not split:
        return _nothing("No step reported its time.")
    sums = {part: sum(parts.get(part, 0.0) for _, parts in split) for part in PARTS}
    whole = sum(sums.values()) or 1.0
    legend = [(part, text, f"{sums[part] / whole:.0%}", duration(sums[part])) for part, text in PARTS.items() if sums[part] > 0]
    longest = max(sum(parts.values()) for _, parts in split) or 1.0
    return _legend(legend) + _columns(
        [(step, [(part, parts.get(part, 0.0)) for part in PARTS]) for step, parts in split], longest, "{:.2f} s"
    )


def _outcomes(steps: Sequence[StepFigures]) -> str:
    known = [(step.step, step.outcomes) for step in steps if sum(step.outcomes.values())]
    if not known:
        return _nothing("No outcomes were reported.")
    sums = {name: sum(outcomes.get(name, 0) for _, outcomes in known) for name in OUTCOMES}
    whole = sum(sums.values())
    legend = [(name, name, f"{count / whole:.1%}", f"{count:,}") for name, count in sums.items()]
    columns = [
        (step, [(name, outcomes.get(name, 0) / sum(outcomes.values())) for name in OUTCOMES]) for step, outcomes in known
    ]
    return _legend(legend) + _columns(columns, 1.0, "{:.1%}")


def _legend(items: Sequence[tuple[str, str, str, str]]) -> str:
    """One entry for (part, its name, its share, how much that is)."""
    entries = "".join(
        f'<li><i class="{part}" style="background:{COLORS[part]}"></i>{escape(name)} <b>{share}</b> <small>{much}</small></li>'
        for part, name, share, much in items
    )
    return f'<ul class="legend">{entries}</ul>'


def _columns(columns: Sequence[tuple[int, Sequence[tuple[str, float]]]], top: float, form: str) -> str:
    """Stacked columns as an inline SVG, one a step, thinned to what fits."""
    shown = thinned(columns, MOST_ROWS)
    width = 1000 / len(shown)
    gap = min(3.0, width * 0.15)
    bars = []
    for index, (step, parts) in enumerate(shown):
        y = 160.0
        tip = ", ".join(f"{name} {form.format(value)}" for name, value in parts if value)
        bars.append(f"<g><title>step {step}: {escape(tip)}</title>")
        for name, value in parts:
            height = 160 * value / top
            if height >= 0.05:
                y -= height
                x = index * width
                size = f'width="{width - gap:.2f}" height="{height:.2f}"'
                bars.append(f'<rect class="{name}" fill="{COLORS[name]}" x="{x:.2f}" y="{y:.2f}" {size}/>')
        bars.append("</g>")
    first, last = shown[0][0], shown[-1][0]
    axis = f"<span>step {first}</span>" + (f"<span>step {last}</span>" if last != first else "")
    return (
        f'<svg class="columns" viewBox="0 0 1000 160" preserveAspectRatio="none" role="img">{"".join(bars)}</svg>'
        f'<div class="axis">{axis}</div>'
    )


def _steps(steps: Sequence[StepFigures]) -> str:
    if not steps:
        return _nothing("No step was trained.")
    columns = [column for column in COLUMNS if any(step.get(column[1]) is not None for step in steps)]
    shown = thinned(steps, MOST_ROWS)
    several = len({step.attempt for step in steps}) > 1
    names = ["step", *(["attempt"] if several else []), *(name for name, _, _ in columns)]
    rows = [
        [
            str(step.step),
            *([str(step.attempt)] if several else []),
            *(_form(step.get(key), form) for _, key, form in columns),
        ]
        for step in shown
    ]
    note = "" if len(shown) == len(steps) else f"<p class='sub'>{len(shown)} of {len(steps)} steps; all are in the journal.</p>"
    return note + _table(names, rows, scroll=True)


def _versions(figures: Figures, steps: Sequence[StepFigures]) -> str:
    published = {int(value): step for step in steps if (value := step.get("version")) is not None}
    versions = sorted({*published, *(version for _, version in figures.served)})
    if not versions:
        return _nothing("No policy version was published.")
    rows = []
    for version in thinned(versions, MOST_ROWS):
        served = [item for item in figures.served.values() if item.version == version]
        loads = [item.load_s for item in served if item.load_s is not None]
        hashes = {item.hash for item in served if item.hash is not None}
        step = published.get(version)
        agree = "-" if not hashes else escape(min(hashes)[:16]) if len(hashes) == 1 else "DIFFERENT"
        rows.append(
            [
                str(version),
                "-" if step is None else str(step.step),
                "-" if step is None else _form(step.get("publish_s"), "{:.2f}"),
                str(len(served)),
                _form(max(loads, default=None), "{:.2f}"),
                agree,
            ]
        )
    return _table(["version", "step", "publish s", "engines", "slowest load s", "hash"], rows, scroll=True)


def _processes(facts: ReportFacts) -> str:
    logs = {path.stem: path for path in facts.logs}
    rows = []
    for name in sorted({*logs, *facts.records}, key=by_rank):
        record = facts.records.get(name)
        log = logs.get(name)
        link = "-"
        if log is not None:
            target = escape(str(log.relative_to(facts.path)) if log.is_relative_to(facts.path) else str(log))
            link = f'<a href="{target}">{target}</a>'
        rows.append(
            [
                escape(name),
                "-" if record is None else escape(record.status),
                "-" if record is None else str(record.code),
                "-" if record is None else escape(record.host),
                link,
            ]
        )
    if not rows:
        return _nothing("Nothing was started.")
    return _table(["process", "ended", "code", "host", "log"], rows, scroll=True, text=True)


def _recipe(recipe: Any) -> str:
    rows = [[escape(name), f"<code>{escape(cut(text, 400))}</code>"] for name, text in settings(recipe)]
    table = _table(["setting", "value"], rows, text=True)
    return f"<details><summary>{len(rows)} settings, as resolved</summary>{table}</details>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], *, scroll: bool = False, text: bool = False) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table{' class=text' if text else ''}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>' if scroll else table


def _nothing(text: str) -> str:
    return f'<p class="nothing">{escape(text)}</p>'


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def thinned(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
