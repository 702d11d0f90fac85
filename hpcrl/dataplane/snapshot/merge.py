"""The files of several nodes read as one: a block's columns may lie on different nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.schema import describe
from hpcrl.dataplane.snapshot.layout import LABELS, BlockInfo, SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.rows import Rows, Table
from hpcrl.recipe import Column, Stream


@dataclass
class _Held:
    """A block, and where its parts are: number of the file, and of the block within it."""

    info: BlockInfo
    parts: list[tuple[int, int]]


class Merged:
    """Open files of one snapshot.

    Attributes:
        columns: of each stream.
    """

    def __init__(self, files: Sequence[Rows]) -> None:
        self._files = files
        self.columns: dict[str, tuple[Column, ...]] = {}
        self._blocks: dict[str, dict[int, _Held]] = {}
        for number, file in enumerate(files):
            for name, table in file.tables.items():
                columns = tuple(table.columns.values())
                if self.columns.setdefault(name, columns) != columns:
                    raise SnapshotError(f"{file.path}: stream {name!r} has other columns than in {files[0].path}")
                held = self._blocks.setdefault(name, {})
                for at, info in enumerate(table.infos()):
                    before = held.get(info.first)
                    if before is None:
                        held[info.first] = _Held(info, [(number, at)])
                    else:
                        held[info.first] = _Held(_union(before.info, info, file.path), [*before.parts, (number, at)])

    def infos(self) -> list[BlockInfo]:
        """Every block without its payload."""
        return [held.info for blocks in self._blocks.values() for held in blocks.values()]

    def blocks(self, stream: str, only: Container[int] | None = None) -> Iterator[SavedBlock]:
        """A stream's blocks, whole; some MiB of each file are held at a time.

        Args:
            only: first row ids of those that are wanted; None = all.
        """
        wanted = [held for first, held in self._blocks[stream].items() if only is None or first in only]
        # Each file is read in the order in which its parts are needed.
        sources = [
            _source(file.tables.get(stream), [at for held in wanted for n, at in held.parts if n == number])
            for number, file in enumerate(self._files)
        ]
        for held in wanted:
            parts = [next(sources[number]) for number, _ in held.parts]
            columns = {name: data for part in reversed(parts) for name, data in part.columns.items()}
            yield SavedBlock(stream, held.info.first, held.info.rows, columns, held.info.labels)


@contextmanager
def open_merged(paths: Sequence[Path]) -> Iterator[Merged]:
    """Open files of one snapshot together.

    Raises:
        SnapshotError: one cannot be read, or they do not fit together.
    """
    with ExitStack() as stack:
        yield Merged([stack.enter_context(Rows(path)) for path in paths])


def check_schema(columns: Mapping[str, Sequence[Column]], streams: Sequence[Stream], where: Path) -> None:
    """Compare what was saved with what a recipe declares.

    Raises:
        SnapshotError: names every stream and column that differs, and both types.
    """
    declared = {stream.name: {column.name: describe(column) for column in stream.columns} for stream in streams}
    saved = {name: {column.name: describe(column) for column in given} for name, given in columns.items()}
    problems = [
        f"stream {stream!r} is {_there(stream in saved)} in the snapshot and {_there(stream in declared)} in the recipe"
        for stream in sorted(declared.keys() ^ saved.keys())
    ]
    for stream in sorted(declared.keys() & saved.keys()):
        for name in dict.fromkeys([*declared[stream], *saved[stream]]):
            here, there = declared[stream].get(name, "not there"), saved[stream].get(name, "not there")
            if here != there:
                problems.append(f"stream {stream!r}, column {name!r} is {there} in the snapshot and {here} in the recipe")
    if problems:
        raise SnapshotError(f"{where} does not fit the recipe: {'; '.join(problems)}")


def _there(is_there: bool) -> str:
    return "there" if is_there else "not there"


def _source(table: Table | None, numbers: list[int]) -> Iterator[SavedBlock]:
    return table.blocks(numbers) if table is not None else iter(())


def _union(one: BlockInfo, other: BlockInfo, path: Path) -> BlockInfo:
    if one.rows != other.rows:
        raise SnapshotError(
            f"{path}: block {one.first} of stream {one.stream!r} has {other.rows} rows here and {one.rows} elsewhere"
        )
    labels: Labels = msgspec.structs.replace(
        other.labels, **{name: mine for name in LABELS if (mine := getattr(one.labels, name))}
    )
    return replace(one, columns=one.columns | other.columns, labels=labels)
