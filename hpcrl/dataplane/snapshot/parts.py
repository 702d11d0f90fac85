"""Parts of a snapshot that other nodes write: what lies in a node's shared memory only its own processes can read.

::

    RUN/attempt_2/snapshots/00000007/wanted-NODE.msgpack   which blocks; written by whoever makes the snapshot
    RUN/attempt_2/snapshots/00000007/part-NODE.json        what was written of them, beside node-NODE.h5
"""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.snapshot.gather import Counts
from hpcrl.dataplane.snapshot.layout import SnapshotError, encoded
from hpcrl.dataplane.snapshot.manifest import FileRecord, snapshot_folder
from hpcrl.dataplane.snapshot.request import Request, encode_request, read_request
from hpcrl.run.atomic import write_bytes
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import DeadlineExceeded, host
from hpcrl.run.listing import Listing
from hpcrl.run.stop import StopFlag, back_off, wait_for

log = logging.getLogger(__name__)

LOOK_S = 0.5
# A node that has not written its part by then is away, or its file system is.
PART_S = 120.0


class Part(msgspec.Struct, frozen=True):
    """What a node wrote.

    Attributes:
        error: why there is no file; empty if there is one.
        left_out, why: see :class:`hpcrl.dataplane.snapshot.request.LeftOut`.
    """

    name: str = ""
    size: int = 0
    digest: str = ""
    streams: dict[str, Counts] = {}
    left_out: list[tuple[str, int]] = []
    why: str = ""
    error: str = ""

    def record(self) -> FileRecord:
        """For the commit."""
        return FileRecord(self.name, self.size, self.digest, self.streams)


def ask_nodes(attempt: Attempt, number: int, request: Request, blocks: Sequence[LiveBlock]) -> list[str]:
    """Have every other node that has columns of blocks in its shared memory write these; names of the nodes.

    Raises:
        OSError: the run's directory cannot be written.
    """
    by_node: dict[str, list[LiveBlock]] = {}
    for block in blocks:
        for node in {ref.node for ref in block.refs.values()} - {"", request.node}:
            refs = {name: ref for name, ref in block.refs.items() if ref.node == node}
            by_node.setdefault(node, []).append(msgspec.structs.replace(block, refs=refs))
    folder = snapshot_folder(attempt, number)
    for node, wanted in by_node.items():
        folder.mkdir(parents=True, exist_ok=True)
        # Its folder in shared memory may be another there, and the units' key is none of a file's business.
        asked = msgspec.structs.replace(request, node=node, folder="", key="", storage=[])
        write_bytes(folder / f"wanted-{encoded(node)}.msgpack", b"".join(encode_request(asked, wanted)), mode=0o600)
    return list(by_node)


def await_nodes(attempt: Attempt, number: int, nodes: Sequence[str], *, seconds: float = PART_S) -> list[Part]:
    """What the nodes wrote.

    Raises:
        SnapshotError: one did not, or failed.
    """
    folder = snapshot_folder(attempt, number)
    parts: dict[str, Part] = {}

    def poll() -> bool | None:
        for path in folder.glob("part-*.json"):
            parts.setdefault(path.name, msgspec.json.decode(path.read_bytes(), type=Part))
        return True if all(_part(node) in parts for node in nodes) else None

    if nodes:
        try:
            wait_for(f"other nodes' parts of {folder}", poll, seconds=seconds, pauses=back_off(0.05, 0.5))
        except DeadlineExceeded as error:
            late = [node for node in nodes if _part(node) not in parts]
            raise SnapshotError(
                f"{error}: nothing came from {', '.join(late)}; only nodes with a storage unit can write a part"
            ) from error
    for part in parts.values():
        if part.error:
            raise SnapshotError(part.error)
    return [parts[_part(node)] for node in nodes]


class PartWriter:
    """Writes the parts of a node, each in a process of its own, until the stop.

    Args:
        folder: of the attempt, in this node's shared memory.
    """

    def __init__(self, attempt: Attempt, node: str, folder: Path, stop: StopFlag) -> None:
        self._snapshots = attempt.path / "snapshots"
        self._node, self._folder, self._stop = node, folder, stop
        self._thread = threading.Thread(target=self._run, name="snapshot-parts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        listing, done = Listing(self._snapshots), set[str]()
        while not self._stop.sleep(LOOK_S):
            for name in sorted(listing.read() - done):
                wanted = self._snapshots / name / f"wanted-{encoded(self._node)}.msgpack"
                # Whoever asks writes this first of all, so a later look need not come back to a folder that has none.
                if wanted.exists():
                    code = subprocess.call(
                        [sys.executable, "-m", "hpcrl.dataplane.snapshot.part", str(wanted), str(self._folder)]
                    )
                    if code:
                        log.warning("this node's part of snapshot %s was not written (%d); see above", wanted.parent, code)
                    done.add(name)
                elif (wanted.parent / "manifest.json").exists():
                    done.add(name)


def read_wanted(path: Path, folder: Path) -> tuple[Request, list[LiveBlock]]:
    """What a node is asked for.

    Raises:
        DataPlaneError: the file is not what :func:`ask_nodes` writes.
    """
    try:
        request, blocks = read_request(io.BytesIO(path.read_bytes()))
    except (EOFError, msgspec.MsgspecError, OSError) as error:
        raise DataPlaneError(f"{host()}: {path} cannot be read: {error}") from error
    return msgspec.structs.replace(request, folder=str(folder)), blocks


def write_part(folder: Path, node: str, part: Part) -> None:
    """Let the asker know."""
    write_bytes(folder / _part(node), msgspec.json.encode(part))


def _part(node: str) -> str:
    return f"part-{encoded(node)}.json"
