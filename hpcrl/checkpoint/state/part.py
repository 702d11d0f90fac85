"""What each rank wrote of a save, so that rank 0's writer can commit it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from hpcrl.checkpoint.state.layout import StateError, part_name
from hpcrl.run.atomic import write_bytes
from hpcrl.run.digest import digest_bytes
from hpcrl.run.disk import FileRecord, read_file
from hpcrl.run.errors import DeadlineExceeded, host
from hpcrl.run.failpoints import reach
from hpcrl.run.stop import back_off, wait_for


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor, or a box of one, lies.

    Attributes:
        offset, index: of the box, as torch's metadata names it.
        start, size: in the file [bytes].
    """

    name: str
    offset: tuple[int, ...] | None
    index: int | None
    file: str
    start: int
    size: int


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's part.

    Attributes:
        files: everything that it wrote.
        error: why it did not; empty if it did.
    """

    rank: int
    host: str
    files: list[FileRecord] = []
    shards: list[Shard] = []
    error: str = ""


def write_part(save: Path, part: Part) -> FileRecord:
    """Leave a part; every file in it must be durable.

    Raises:
        OSError: it cannot be written.
    """
    path = save / part_name(part.rank)
    data = msgspec.json.encode(part)
    reach("part.begin", path)
    write_bytes(path, data)
    reach("part.done", path)
    return FileRecord(path.name, len(data), digest_bytes(data))


def leave_word(save: Path, rank: int, error: str) -> None:
    """Tell rank 0's writer that a rank's part will not come, as far as the file system lets it."""
    with suppress(OSError):
        write_part(save, Part(rank=rank, host=host(), error=error))


def read_part(save: Path, rank: int) -> tuple[Part, FileRecord]:
    """A part, and the record of its own file.

    Raises:
        OSError: it is not there.
        msgspec.MsgspecError: it is no part.
    """
    path = save / part_name(rank)
    data = read_file(path)
    return msgspec.json.decode(data, type=Part), FileRecord(path.name, len(data), digest_bytes(data))


def await_parts(save: Path, ranks: int, *, seconds: float) -> list[tuple[Part, FileRecord]]:
    """Every rank's part, in the ranks' order, once all files that they name are there in their size.

    Raises:
        StateError: a rank could not write its part, or left none in time.
    """
    found: dict[int, tuple[Part, FileRecord]] = {}
    wrong: dict[str, str] = {}

    def poll() -> bool | None:
        # Listing the folder has a network file system ask its server again.
        sizes = {path.name: path.stat().st_size for path in save.iterdir() if not path.name.endswith(".tmp")}
        for rank in range(ranks):
            if rank not in found and part_name(rank) in sizes:
                found[rank] = read_part(save, rank)
                if found[rank][0].error:
                    raise StateError(found[rank][0].error)
        wrong.clear()
        for part, _ in found.values():
            for file in part.files:
                if sizes.get(file.name) != file.size:
                    wrong[file.name] = f"{file.name} of rank {part.rank} has {sizes.get(file.name, 'no')} bytes of {file.size}"
        return True if len(found) == ranks and not wrong else None

    try:
        wait_for(f"the parts of all ranks in {save}", poll, seconds=seconds, pauses=back_off(0.01, 0.5))
    except DeadlineExceeded as error:
        missing = [rank for rank in range(ranks) if rank not in found]
        what = f"nothing came from ranks {missing}" if missing else "; ".join(wrong.values())
        raise StateError(f"{error}: {what}; read the trainer's logs of these ranks") from error
    return [found[rank] for rank in range(ranks)]
