"""Sentences and figures for a person: what a stream holds, what a row waits for, why nobody may put."""

from __future__ import annotations

from typing import Any

from hpcrl.dataplane.ledger.books import Books, held_by_draw
from hpcrl.dataplane.ledger.records import Block
from hpcrl.dataplane.ledger.streams import StreamBook

_MIB = 2**20


def why_full(book: StreamBook, rows: int, size: int, now: float) -> str:
    """Why there is no room for more rows."""
    rules, used = book.rules, book.credits.used
    text = (
        f"stream {rules.name!r} has no room for {rows} rows of {size / _MIB:.3g} MiB: {used.rows} of {rules.capacity_rows} "
        f"rows and {used.bytes / _MIB:.3g} of {rules.capacity_bytes / _MIB:.3g} MiB are untrained; its final reader, group "
        f"{rules.final!r}, is to clear some"
    )
    oldest = book.oldest_untrained()
    if oldest is None:
        return text
    return f"{text}; the oldest rows ({oldest.first}…, {now - oldest.t:.0f} s old) {'; '.join(_waits(book, oldest))}"


def why_row(books: Books, row: int) -> list[str]:
    """Where a row is, who holds it, which columns it lacks and who owes them."""
    for name, book in books.streams.items():
        for block in book.record.blocks.values():
            if block.first <= row < block.first + block.rows:
                maker = f"put by {block.maker}" if block.maker else "restored from a snapshot"
                head = f"row {row} is in stream {name!r}, one of {block.rows} rows {maker} {books.now - block.t:.0f} s ago"
                done = [f"group {group!r} is done with it" for group in block.done]
                return [head, *done, *(f"its rows {wait}" for wait in _waits(book, block))]
    return [f"row {row} is not in any stream: it was cleared or dropped, or never was; the run's history says which"]


def figures(books: Books, stream: str = "") -> dict[str, dict[str, Any]]:
    """By stream, or of one: how much is in it, who has had how much, and counts since the start.

    ``rows``, ``blocks``, ``bytes`` live; ``rows_with`` by column; ``untrained_rows`` and ``untrained_bytes`` against
    ``capacity_rows`` and ``capacity_bytes``; ``oldest_s`` [s] of the oldest row; ``groups``: by reading group, rows ``unread``
    (its lag), under ``leased`` and ``done``; ``holders``: rows leased by process, or by a draw; ``waiting``: producers;
    ``closed``: processes; ``counters``: rows ``produced``, ``produced_bytes``, ``trained``, ``cleared``, ``expired``, and
    ``dropped`` by reason.
    """
    if stream:
        books.book(stream)
    return {name: _figures(books, book) for name, book in books.streams.items() if stream in ("", name)}


def _figures(books: Books, book: StreamBook) -> dict[str, Any]:
    counters, blocks = book.record.counters, book.record.blocks
    return {
        "rows": book.rows,
        "blocks": len(blocks),
        "bytes": book.bytes,
        "rows_with": {column: book.rows_with[column] for column in book.rules.columns},
        "untrained_rows": book.credits.used.rows,
        "untrained_bytes": book.credits.used.bytes,
        "capacity_rows": book.rules.capacity_rows,
        "capacity_bytes": book.rules.capacity_bytes,
        "oldest_s": max(0.0, books.now - next(iter(blocks.values())).t) if blocks else 0.0,
        "groups": {
            group: {
                "unread": book.rows - book.leased[group] - book.done[group],
                "leased": book.leased[group],
                "done": book.done[group],
            }
            for group in book.rules.readers
        },
        "holders": _holders(books, book),
        "waiting": book.credits.waiting,
        "closed": sorted(book.record.closed),
        "counters": {
            "produced": counters.produced,
            "produced_bytes": counters.produced_bytes,
            "trained": counters.trained,
            "cleared": counters.cleared,
            "expired": counters.expired,
            "dropped": dict(counters.dropped),
        },
    }


def _holders(books: Books, book: StreamBook) -> dict[str, int]:
    found = {}
    for who, process in books.record.processes.items():
        if held := process.held.get(book.rules.name):
            found[who] = sum(book.record.blocks[first].rows for first in held)
    for group, draws in book.record.draws.items():
        for number, draw in draws.items():
            firsts = [first for share in draw.shares for first in share]
            found[f"draw {number} of {group}"] = sum(block.rows for block in held_by_draw(book, group, number, firsts))
    return found


def _waits(book: StreamBook, block: Block) -> list[str]:
    lines = []
    for group, hold in block.holds.items():
        if hold.draw >= 0:
            members = ", ".join(book.record.draws[group][hold.draw].members)
            holder = f"draw {hold.draw} of group {group!r} ({members})"
        else:
            holder = hold.who
        lines.append(
            f"are held by {holder}" if not block.trained else f"are trained by version {block.version}, held by {holder}"
        )
    lacking = [column for column in book.rules.columns if column not in block.refs and column in book.rules.fillers]
    for column in lacking:
        lines.append(f"lack column {column!r}, owed by {' or '.join(map(repr, book.rules.fillers[column]))}")
    if not lines:
        free = [group for group in book.rules.readers if group not in block.done]
        lines.append(f"wait for {', '.join(f'group {group!r}' for group in free)} to read them")
    return lines
