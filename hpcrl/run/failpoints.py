"""Named places where a test has a process die, or its file system fail, slow down or lag.

Nothing is armed unless the environment says so; only tests do::

    HPCRL_FAILPOINT="POINT[~TEXT][@N][+][=ACTION],…"

- ``POINT``: one of :data:`POINTS`.
- ``~TEXT``: only where the path in hand has this in it.
- ``@N``: the N-th time that it is reached in a process, 1 unless given; with ``+`` also every later time.
- ``ACTION``: ``kill`` (SIGKILL to the process itself; the default), ``kill-group`` (to its whole process group, as when a node
  dies), ``errno:NAME`` (an :class:`OSError`, such as ``errno:ENOSPC``), ``sleep:SECONDS``, ``throttle:BYTES_PER_S`` (waits as
  long as a disk of that speed), ``late:SECONDS`` (a file is not found until so long after it was first looked for).
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

VARIABLE = "HPCRL_FAILPOINT"

# Every place, and what is the case when it is reached.
POINTS = {
    "disk.mkdir": "a folder is about to be made",
    "disk.create": "a file is about to be made",
    "disk.write": "a piece is about to be written",
    "disk.fsync": "content or names are about to be made durable",
    "disk.rename": "a rename is about to be done",
    "disk.unlink": "a file or folder is about to be removed",
    "disk.open": "a file is about to be read",
    "state.begin": "the trainer is about to save, and has made nothing yet",
    "state.folder": "the save's folder is there and empty",
    "state.stage": "a tensor is about to be copied to the host's memory",
    "state.staged": "all tensors are copied; the writer was not asked yet",
    "state.asked": "the writer was asked",
    "state.committed": "the trainer has heard of the commit; the rows are not acknowledged yet",
    "writer.start": "a writer process has begun",
    "writer.request": "the writer has read what it is asked for",
    "shard.begin": "the writer is about to write its shards",
    "shard.tensor": "a tensor is about to be written into the shard file",
    "shard.written": "the shard file is written, not yet durable",
    "shard.durable": "the shard file is durable",
    "part.begin": "the record of a rank's files is about to be written",
    "part.done": "the record of a rank's files is there",
    "commit.begin": "the committing writer is about to wait for all parts",
    "commit.metadata": "every part is there; the index of the shards is about to be written",
    "manifest.begin": "the manifest is about to be written",
    "manifest.written": "the manifest is durable under another name",
    "manifest.done": "the manifest is there: the save is committed",
    "prune.begin": "older saves are about to go",
    "prune.hidden": "an older save is out of sight and not removed yet",
    "prune.done": "older saves are gone",
    "restore.begin": "a save was chosen and is about to be checked",
    "restore.checked": "a save was checked and is about to be loaded",
    "batch.part": "a part of a step's batch is trained, and the step not whole",
    "publish.begin": "a policy version is about to be published, and nothing is made yet",
    "publish.folder": "the version's folder is there and empty",
    "publish.tensor": "a tensor is about to be compared with what was published before",
    "publish.part": "a rank's file is about to be written",
    "publish.written": "a rank's file is there",
    "publish.marker": "all files are there; the version's record is about to be written",
    "publish.done": "the version's record is there: it is published, and not announced yet",
    "publish.prune": "an older version is out of sight and not removed yet",
    "node.begin": "a node's weights are about to change",
    "node.unmarked": "the record of what a node holds is gone, its weights are those of before",
    "node.base": "a file of a base is about to be copied to the node",
    "node.tensor": "a tensor is about to be patched on the node",
    "node.patched": "all tensors are patched, none is checked",
    "node.checked": "a node's weights are whole and checked; the record is about to be written",
    "node.done": "the record of what a node holds is there",
    "update.begin": "an engine is about to be told to load a version",
    "transport.send": "a rank is about to hand its part of a version to engines, and has handed over nothing yet",
    "transport.tensor": "a tensor is about to be sent to engines",
    "transport.receive": "an engine is about to receive a tensor",
    "transport.chunk": "a piece of a published file is about to be sent to a peer",
    "ring.granted": "a process has heard that its group has the token of a ring, and has no memory yet",
    "ring.release": "a process that has the token of a ring is about to let go of its memory",
    "ring.leave": "its memory is free; the token is about to be handed on",
    "update.done": "an engine has loaded a version that is not announced yet",
}
NAMES = tuple(POINTS)


@dataclass
class _Armed:
    text: str
    nth: int
    on: bool
    kind: str
    value: str
    count: int = 0
    first_looks: dict[str, float] = field(default_factory=dict)


_armed: dict[str, list[_Armed]] = {}
_lock = threading.Lock()


def reach(name: str, path: str | os.PathLike[str] = "", size: int = 0) -> None:
    """Say that this place is reached, with the path in hand and the bytes about to be written, if there are any.

    Raises:
        ValueError: the name is not one of :data:`POINTS`.
        OSError: what is armed asks for it.
    """
    if name not in POINTS:
        raise ValueError(f"failpoint {name!r} is not in hpcrl.run.failpoints.POINTS")
    if _armed:
        _act(name, os.fspath(path), size)


def arm(text: str) -> None:
    """Arm these and no others, in this process; the environment's are armed at import.

    Raises:
        ValueError: a point or an action is not known.
    """
    armed: dict[str, list[_Armed]] = {}
    for one in filter(None, (piece.strip() for piece in text.split(","))):
        name, parsed = _parse(one)
        armed.setdefault(name, []).append(parsed)
    with _lock:
        _armed.clear()
        _armed.update(armed)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """:func:`arm`, and none afterwards."""
    arm(text)
    try:
        yield
    finally:
        arm("")


def _parse(text: str) -> tuple[str, _Armed]:
    head, _, action = text.partition("=")
    head, on = head.removesuffix("+"), head.endswith("+")
    place, at, nth = head.partition("@")
    name, _, part = place.partition("~")
    if name not in POINTS:
        raise ValueError(f"{VARIABLE}: there is no failpoint {name!r}; there are {', '.join(NAMES)}")
    if at and not (nth.isdigit() and int(nth) > 0):
        raise ValueError(f"{VARIABLE}: {nth!r} in {text!r} is no number of times")
    kind, _, value = (action or "kill").partition(":")
    try:
        known = {"kill": not value, "kill-group": not value, "errno": hasattr(errno, value)}.get(kind)
        if known is None:
            known = kind in ("sleep", "throttle", "late") and float(value) > 0
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{VARIABLE}: the action {action!r} in {text!r} is not known")
    # A name that came late once would be there at the next look.
    return name, _Armed(part, int(nth or 1), on or kind == "late", kind, value)


def _act(name: str, path: str, size: int) -> None:
    for one in _armed.get(name, ()):
        if one.text not in path:
            continue
        with _lock:
            one.count += 1
            if one.count != one.nth and not (one.on and one.count > one.nth):
                continue
            seen = one.first_looks.setdefault(path, time.monotonic())
        if one.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif one.kind == "kill-group":
            os.killpg(0, signal.SIGKILL)
        elif one.kind == "errno":
            code = getattr(errno, one.value)
            raise OSError(code, os.strerror(code), path or None)
        elif one.kind == "late":
            if time.monotonic() - seen < float(one.value):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path or None)
        else:
            time.sleep(float(one.value) if one.kind == "sleep" else size / float(one.value))


arm(os.environ.get(VARIABLE, ""))
