"""What roles promise of the streams and ask of them: everything must fit before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, get_args

from hpcrl.config.nearest import nearest
from hpcrl.plan.declarations import declaration_problems, group_problems, ring_problems
from hpcrl.plan.labels import label_problems
from hpcrl.recipe import DType, Reads, Recipe, Role, Stream, Writes

Claim = TypeVar("Claim", Reads, Writes)


def contract_problems(recipe: Recipe) -> list[str]:
    """Everything wrong with a recipe's declarations and with how its roles meet in the streams, a sentence each."""
    problems = declaration_problems(recipe) + group_problems(recipe) + ring_problems(recipe)
    claims = Claims(recipe)
    problems += claims.problems
    problems += _undeclared(recipe, claims)
    for stream in {item.name: item for item in recipe.streams}.values():
        problems += _stream_problems(stream, claims)
        problems += _column_problems(stream, claims)
        _, writes = claims.of(stream.name)
        created = {column for _, claim in writes if claim.creates for column in claim.columns}
        problems += label_problems(stream, created, [created, *(claim.columns for _, claim in writes if not claim.creates)])
    return problems


class Claims:
    """Every group's reads and writes, in the order of the groups' names.

    Attributes:
        problems: contracts that are no tuples of Reads or Writes; they are left out of the rest.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.problems: list[str] = []
        self.reads: list[tuple[str, Reads]] = []
        self.writes: list[tuple[str, Writes]] = []
        for name in sorted(recipe.groups):
            role = recipe.groups[name].role
            if not isinstance(role, Role):
                continue
            self.reads += [(name, item) for item in self._sound(name, "reads", role.reads(), Reads)]
            self.writes += [(name, item) for item in self._sound(name, "writes", role.writes(), Writes)]

    def _sound(self, group: str, method: str, held: tuple[Claim, ...], kind: type[Claim]) -> list[Claim]:
        # A role's method is a person's code: a forgotten comma makes one claim of a tuple of one.
        if not isinstance(held, tuple | list) or not all(isinstance(item, kind) for item in held):
            self.problems.append(f"group {group}: {method}() of its role must return a tuple of {kind.__name__}")
            return []
        sound = [item for item in held if isinstance(item.columns, tuple | list) and item.columns]
        if len(sound) < len(held):
            self.problems.append(f"group {group}: each of {method}() of its role must name a tuple of columns")
        return sound

    def of(self, stream: str) -> tuple[list[tuple[str, Reads]], list[tuple[str, Writes]]]:
        """Reads and writes of one stream, with the group of each."""
        return [pair for pair in self.reads if pair[1].stream == stream], [p for p in self.writes if p[1].stream == stream]


def _undeclared(recipe: Recipe, claims: Claims) -> list[str]:
    problems = []
    streams = {stream.name: stream for stream in recipe.streams}
    feedback = [item.name for item in recipe.feedback]
    for verb, pairs in (("reads", claims.reads), ("writes", claims.writes)):
        for group, claim in pairs:
            stream = streams.get(claim.stream)
            if stream is None:
                problems.append(
                    f"group {group} {verb} stream {claim.stream!r}, which is not declared; {nearest(claim.stream, streams)}"
                )
                continue
            known = [column.name for column in stream.columns]
            problems += [
                f"group {group} {verb} column {column!r} of stream {stream.name}, which is not declared; "
                f"{nearest(column, known)}"
                for column in dict.fromkeys(claim.columns)
                if column not in known
            ]
    for group in sorted(recipe.groups):
        role = recipe.groups[group].role
        if not isinstance(role, Role):
            continue
        for verb, names in (("listens to", role.listens()), ("announces", role.announces())):
            problems += [
                f"group {group} {verb} feedback stream {name!r}, which is not declared; {nearest(name, feedback)}"
                for name in names
                if name not in feedback
            ]
    return problems


def _stream_problems(stream: Stream, claims: Claims) -> list[str]:
    problems = []
    reads, writes = claims.of(stream.name)
    creators = _groups(pair for pair in writes if pair[1].creates)
    if not creators:
        problems.append(f"stream {stream.name}: no group creates its rows (a Writes with creates=True)")
    elif len(creators) > 1:
        problems.append(f"stream {stream.name}: groups {_and(creators)} all create its rows; exactly one may")
    finals = _groups(pair for pair in reads if pair[1].final)
    if not finals:
        problems.append(f"stream {stream.name}: no group clears its rows; exactly one reader must have final=True")
    elif len(finals) > 1:
        problems.append(f"stream {stream.name}: groups {_and(finals)} are all its final reader; exactly one may be")
    readers = set(_groups(reads))
    problems += [
        f"group {group} fills columns of stream {stream.name} without reading it; a block must be read to be filled"
        for group in _groups(pair for pair in writes if not pair[1].creates)
        if group not in readers and group not in creators
    ]
    problems += [
        f"group {group} reads at most {claim.max_rows} rows of stream {stream.name} at a time, less than a block of it "
        f"({stream.block_rows} rows); raise the role's rows or lower streams.{stream.name}.block_rows"
        for group, claim in reads
        if claim.max_rows < stream.block_rows
    ]
    produced = {column for _, claim in writes for column in claim.columns}
    # A column that nobody produces is reported by itself, and leaves gaps here.
    if len(finals) == 1 and produced.issuperset(column for _, claim in reads for column in claim.columns):
        awaited = _awaited(finals[0], reads, writes)
        problems += [
            f"group {group} reads stream {stream.name} but nothing that {finals[0]} waits for, so {finals[0]} may clear rows "
            f"before {group} has read them; have {group} fill a column that {finals[0]} reads"
            for group in sorted(readers - awaited)
        ]
    return problems


def _awaited(final: str, reads: list[tuple[str, Reads]], writes: list[tuple[str, Writes]]) -> set[str]:
    """The final reader and every group whose columns it waits for, directly or through another."""
    awaited, fresh = set(), {final}
    while fresh:
        awaited |= fresh
        columns = {column for group, claim in reads if group in fresh for column in claim.columns}
        fresh = {group for group, claim in writes if columns & set(claim.columns)} - awaited
    return awaited


def _column_problems(stream: Stream, claims: Claims) -> list[str]:
    problems = []
    reads, writes = claims.of(stream.name)
    for column in {item.name: item for item in stream.columns}.values():
        writers = _groups(pair for pair in writes if column.name in pair[1].columns)
        readers = _groups(pair for pair in reads if column.name in pair[1].columns)
        if readers and not writers:
            problems.append(f"stream {stream.name}: column {column.name} is read by {_and(readers)} and nobody produces it")
        if len(writers) > 1:
            problems.append(f"stream {stream.name}: column {column.name} is produced by {_and(writers)}; exactly one group may")
        if column.dtype not in get_args(DType):
            problems.append(
                f"stream {stream.name}: column {column.name} has dtype {column.dtype!r}; "
                f"{nearest(str(column.dtype), get_args(DType))}"
            )
        if column.dtype == "str" and column.ragged:
            problems.append(f"stream {stream.name}: column {column.name} is ragged, which a str column cannot be")
        if column.finite and column.dtype != "float32":
            problems.append(f"stream {stream.name}: column {column.name} is finite, which only a float column can be")
    return problems


def _groups(pairs: Iterable[tuple[str, Reads | Writes]]) -> list[str]:
    return list(dict.fromkeys(group for group, _ in pairs))


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
