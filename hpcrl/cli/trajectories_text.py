"""Trajectories for people and, as plain data, for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import click

from hpcrl.data.rewards import Outcome
from hpcrl.dataplane.snapshot.export import plain

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

# Columns of a table that goes to no terminal.
WIDE = 160
_STYLES = {"right": "green", "wrong": "yellow"}


class Words(Protocol):
    """Text of tokens; None where no tokenizer is to be had."""

    def text(self, ids: np.ndarray) -> str | None:
        """Of them together, special tokens included."""

    def pieces(self, ids: np.ndarray) -> list[str] | None:
        """Of each by itself."""


def table(rows: np.ndarray, records: Iterable[Mapping[str, Any]]) -> Table:
    """A line for each row.

    Args:
        records: with the column ``response``.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("step", True),
        ("row", False),
        ("reward", True),
        ("outcome", False),
        ("tokens", True),
        ("versions", False),
    ):
        made.add_column(name, justify="right" if right else "left", no_wrap=True)
    made.add_column("answer", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, record in zip(rows, records, strict=True):
        outcome = outcome_of(row)
        made.add_row(
            str(row["step"]),
            handle(row),
            f"{row['reward']:.3g}",
            Text(outcome, style=_STYLES.get(outcome, "red")),
            str(row["length"]),
            span(row),
            # Never as markup, nor as what a terminal takes for commands.
            Text(first_line(record["response"])),
        )
    return made


def show(row: np.ndarray, record: Mapping[str, Any], words: Words, *, tokens: bool) -> str:
    """Everything of one."""
    item = _item(record["item"])
    prompt = words.text(record["prompt_ids"])
    lines = [
        click.style(f"row {handle(row)}", bold=True) + f"  id {int(row['row'])}",
        f"step {row['step']}, prompt {row['prompt']}, sample {row['sample']}",
        f"reward {row['reward']:.6g} ({outcome_of(row)}), advantage {row['advantage']:.6g}, ended by {record['finish'] or '?'}",
        f"{row['prompt_length']} + {row['length']} tokens, made by policy versions {span(row)}",
        "",
        _head("prompt"),
        printable(prompt if prompt is not None else str(item.get("question", record["item"]))),
        "",
        _head("answer"),
        printable(record["response"]),
        "",
        _head("reference"),
        printable(str(item.get("answer", ""))),
    ]
    if item.get("source"):
        lines.append(printable(f"from {item['source']}"))
    if tokens:
        lines += ["", _head("tokens"), *_tokens(record, words)]
    return "\n".join(lines)


def to_json(row: np.ndarray, record: Mapping[str, Any], *, tokens: bool) -> dict[str, Any]:
    """One as plain data."""
    made = {
        "row": int(row["row"]),
        "handle": handle(row),
        "step": int(row["step"]),
        "prompt": int(row["prompt"]),
        "sample": int(row["sample"]),
        "reward": plain(row["reward"]),
        "outcome": outcome_of(row),
        "advantage": plain(row["advantage"]),
        "prompt_tokens": int(row["prompt_length"]),
        "tokens": int(row["length"]),
        "versions": [int(row["first_version"]), int(row["last_version"])],
        "finish": record["finish"],
        "item": _item(record["item"]),
        "response": record["response"],
    }
    if tokens:
        names = ("prompt_ids", "response_ids", "versions", "rollout_logprobs")
        made["by_token"] = {name: plain(record[name]) for name in names}
    return made


def handle(row: np.ndarray) -> str:
    """What a person calls a row by: its prompt's number and its own among the samples of that."""
    return f"{row['prompt']}.{row['sample']}"


def span(row: np.ndarray) -> str:
    """The policy versions that made the answer."""
    first, last = int(row["first_version"]), int(row["last_version"])
    return f"{first}" if first == last else f"{first}-{last}"


def outcome_of(row: np.ndarray) -> str:
    """How its grading ended, in a word."""
    try:
        return Outcome(int(row["outcome"])).name.lower()
    except ValueError:
        return f"outcome {int(row['outcome'])}"


def first_line(text: str) -> str:
    """The first line that says something, in which nothing can command a terminal."""
    return printable(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def printable(text: str) -> str:
    """Text with what is no sign, but line ends and tabs, written as Python would."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)


def _tokens(record: Mapping[str, Any], words: Words) -> Iterable[str]:
    pieces = words.pieces(record["response_ids"]) or [""] * len(record["response_ids"])
    yield f"{'':>6}  {'id':>8}  {'version':>7}  {'log-prob':>9}  text"
    every = zip(record["response_ids"], record["versions"], record["rollout_logprobs"], pieces, strict=True)
    for number, (token, version, logprob, piece) in enumerate(every):
        yield f"{number:>6}  {token:>8}  {version:>7}  {logprob:>9.4f}  {repr(piece) if piece else ''}".rstrip()


def _item(text: str) -> dict[str, Any]:
    try:
        item = json.loads(text)
    except ValueError:
        item = None
    return item if isinstance(item, dict) else {"question": text}


def _head(name: str) -> str:
    return click.style(f"-- {name}", dim=True)
