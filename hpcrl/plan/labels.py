"""The columns that a stream names for its history, its balance and its checks: each must be there, of a kind that fits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcrl.config.nearest import nearest
from hpcrl.recipe import Column, Stream

_INTS = ("int8", "int32", "int64")


def label_problems(stream: Stream, created: Collection[str], together: Sequence[Collection[str]]) -> list[str]:
    """Wrong ``prompt``, ``version``, ``tokens`` and ``aligned`` of a stream, a sentence each.

    Args:
        created: columns that rows are put with; none if nobody puts rows.
        together: the columns of each put, and of each fill.
    """
    problems = []
    for label, names in (("prompt", (stream.prompt,)), ("version", (stream.version,)), ("tokens", stream.tokens)):
        for name in filter(None, dict.fromkeys(names)):
            wrong = _wrong_column(stream, label, name)
            if not wrong and created and name not in created:
                wrong = f"which rows are not put with; {label} must be known from the start"
            problems += [f"stream {stream.name}: {label} names column {name!r}, {wrong}"] if wrong else []
    for group in stream.aligned:
        if isinstance(group, str) or len(set(group)) < 2:
            problems.append(f"stream {stream.name}: aligned has {group!r}; it must be groups of two or more columns")
            continue
        wrongs = {name: _wrong_column(stream, "aligned", name) for name in dict.fromkeys(group)}
        problems += [f"stream {stream.name}: aligned names column {n!r}, {wrong}" for n, wrong in wrongs.items() if wrong]
        written = all(any(name in columns for columns in together) for name in group)
        if written and not any(wrongs.values()) and not any(set(group) <= set(columns) for columns in together):
            problems.append(
                f"stream {stream.name}: aligned names columns {', '.join(group)}, which are not written together, so nothing "
                "could compare them"
            )
    return problems


def _wrong_column(stream: Stream, label: str, name: str) -> str:
    found = next((column for column in stream.columns if column.name == name), None)
    if found is None:
        return f"which is not declared; {nearest(name, [column.name for column in stream.columns])}"
    ragged = label in ("tokens", "aligned")
    if ragged and not found.ragged:
        return f"{_kind(found)}; it must be ragged, as lengths are what counts"
    if not ragged and (found.dtype not in _INTS or (found.ragged and label == "prompt")):
        return f"{_kind(found)}; it must hold whole numbers" + (", one a row" if label == "prompt" else "")
    return ""


def _kind(column: Column) -> str:
    return f"which is {'ragged ' if column.ragged else ''}{column.dtype}"
