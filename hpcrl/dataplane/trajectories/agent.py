"""Writes trajectories for the trainer: ``python -m hpcrl.dataplane.trajectories.agent DESCRIPTOR``.

In a process of its own, as HDF5 keeps the interpreter to itself while it writes, and ends the process when it fails badly.
See :mod:`hpcrl.dataplane.trajectories.request` for what is said.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.rows import Rows, open_rows
from hpcrl.dataplane.snapshot.write import write_rows
from hpcrl.dataplane.trajectories.layout import BEGAN, STREAM, file_name
from hpcrl.dataplane.trajectories.request import Done, Failed, Reply, Request, decode_block, decode_request, encode_reply
from hpcrl.run.disk import explain, make_folder
from hpcrl.run.errors import HpcrlError
from hpcrl.run.sealed import write_sealed


def main(arguments: list[str]) -> None:
    """Write what the trainer asks for until it ends."""
    # As important as the trainer itself: a save waits for it.
    connection = Connection(int(arguments[0]))
    with suppress(EOFError, OSError):
        while True:
            request = decode_request(connection.recv_bytes())
            blocks = [decode_block(connection.recv_bytes()) for _ in range(request.blocks)]
            connection.send_bytes(encode_reply(answer(request, blocks)))


def answer(request: Request, blocks: Sequence[SavedBlock]) -> Reply:
    """Do what is asked for."""
    try:
        return write(request, blocks)
    except OSError as error:
        return Failed(str(explain("trainer rank 0", "trajectories cannot be written", error, Path(request.folder))))
    except (HpcrlError, msgspec.MsgspecError) as error:
        return Failed(str(error))


def write(request: Request, blocks: Sequence[SavedBlock]) -> Done:
    """Make blocks durable; rows that the file has already are not added again.

    Raises:
        SnapshotError: they cannot be written; an older file is as it was.
        OSError: the folder cannot be made.
    """
    folder = Path(request.folder)
    if not (folder / BEGAN).exists():
        make_folder(folder)
        write_sealed(folder / BEGAN, {"run_id": request.run_id, "attempt": request.attempt, "after": request.after})
    if not blocks:
        return Done(0, 0)
    if request.onto:
        with suppress(SnapshotError), open_rows(folder / file_name(request.onto)) as rows:
            return _write(request, request.onto, [*_kept(rows, blocks), *blocks])
    return _write(request, request.first_step, blocks)


def _kept(rows: Rows, new: Sequence[SavedBlock]) -> Iterator[SavedBlock]:
    again = {block.first for block in new}
    return (block for block in rows.tables[STREAM.name].blocks() if block.first not in again)


def _write(request: Request, first_step: int, blocks: Sequence[SavedBlock]) -> Done:
    path = Path(request.folder) / file_name(first_step)
    about: dict[str, str | int | float] = {
        "run_id": request.run_id,
        "attempt": request.attempt,
        "first_step": first_step,
        "last_step": request.last_step,
        "t": time.time(),
    }
    write_rows(path, [STREAM], blocks, about=about)
    return Done(first_step, path.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stderr.flush()
    # Libraries leave threads that would keep the interpreter from ending.
    os._exit(0)
