"""Makes snapshots for the desk, in a process of its own: ``python -m hpcrl.dataplane.snapshot.agent``.

HDF5 keeps the interpreter to itself while it writes, and ends the process when it fails badly; the desk must not notice
either. See :mod:`hpcrl.dataplane.snapshot.request` for what is said.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.rowids import RowIds
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.snapshot.collect import Collector, Fetch
from hpcrl.dataplane.snapshot.manifest import commit, next_number, snapshot_folder, write_node
from hpcrl.dataplane.snapshot.parts import ask_nodes, await_nodes
from hpcrl.dataplane.snapshot.request import COMMIT, Done, Failed, LeftOut, Reply, Request, encode_reply, read_request
from hpcrl.dataplane.snapshot.retain import retain
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError, host


def main() -> None:
    """Make the snapshots that standard input asks for, one after the other, until it ends."""
    # Libraries may print; replies have their descriptor to themselves.
    replies = os.dup(1)
    os.dup2(2, 1)
    source = sys.stdin.buffer

    def reply(value: Reply) -> None:
        os.write(replies, encode_reply(value))

    def may_commit(left: LeftOut) -> bool:
        # A desk that was killed says nothing, which is no word to commit.
        with suppress(BrokenPipeError):
            reply(left)
        return source.readline() == COMMIT

    with ExitStack() as stack, suppress(BrokenPipeError):
        units = Units(stack)
        while True:
            done: Done | Failed
            try:
                request, blocks = read_request(source)
                with suppress(PermissionError):
                    os.setpriority(os.PRIO_PROCESS, 0, request.nice)
                done = make(request, blocks, may_commit, partial(units.fetch, request))
            except EOFError:
                return
            except (HpcrlError, OSError, msgspec.MsgspecError) as error:
                done = Failed(str(error))
            blocks = []
            reply(done)


def make(request: Request, blocks: Sequence[LiveBlock], may_commit: Callable[[LeftOut], bool], fetch: Fetch) -> Done | Failed:
    """Make a snapshot.

    Args:
        may_commit: hears what could not be read.
        fetch: from the storage units.

    Raises:
        DataPlaneError: it cannot be written, or the storage units are away; earlier ones are as they were.
        OSError: the run's directory cannot be read or written.
    """
    began = time.monotonic()
    attempt = Attempt(RunDirectory.open(Path(request.run)), request.attempt)
    number = next_number(attempt)
    version = max((max(block.labels.last_versions, default=0) for block in blocks), default=0)
    nodes = ask_nodes(attempt, number, request, blocks)
    reader = SegmentReader(Path(request.folder), request.node)
    collector = Collector(reader, request.node, fetch, patience_s=request.call_s)
    file = write_node(attempt, number, request.node, request.streams, collector.read(blocks), policy_version=version)
    parts = await_nodes(attempt, number, nodes)
    left_out = dict.fromkeys([*collector.left_out, *(one for part in parts for one in part.left_out)])
    why = next((text for text in (collector.why, *(part.why for part in parts)) if text), "")
    if not may_commit(LeftOut(list(left_out), why)):
        shutil.rmtree(snapshot_folder(attempt, number), ignore_errors=True)
        return Failed("it was not to be committed")
    files = [file, *(part.record() for part in parts)]
    manifest = commit(attempt, number, files, policy_version=version, ledger_seq=request.ledger_seq)
    problems = retain(attempt.run)
    rows = sum(counts.rows for counts in manifest.streams.values())
    return Done(number, rows, sum(one.size for one in files), time.monotonic() - began, problems)


class Units:
    """The storage units, from the first ref on that needs them: that brings torch.

    Args:
        stack: ends the connection.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._fetch: dict[bytes, Fetch] = {}

    def fetch(self, request: Request, refs: Sequence[Ref]) -> list[np.ndarray]:
        """See :class:`hpcrl.dataplane.transferqueue.mover.Mover`."""
        if not request.storage:
            raise DataPlaneError(f"host {host()}: rows lie in storage units, and none has said where it is")
        where = msgspec.msgpack.encode(request.storage)
        if where not in self._fetch:
            from hpcrl.dataplane.transferqueue.mover import Mover

            # It only reads, so it may have the ids of any process.
            ids = RowIds(attempt=request.attempt, incarnation=0, writer=0)
            mover = Mover("queue.0-snapshot", request.storage, key=request.key, unit=0, ids=ids, call_s=request.call_s)
            self._stack.callback(mover.close)
            self._fetch[where] = mover.read
        return self._fetch[where](refs)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    # Libraries leave threads that would keep the interpreter from ending.
    os._exit(0)
