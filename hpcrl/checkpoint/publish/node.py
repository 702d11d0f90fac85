"""The policy weights of a node: read once from the run's file system, kept in the node's memory, patched in place.

::

    FOLDER/lock              locked by who changes the weights, shared by who loads them
    FOLDER/model/            one version in Hugging Face layout
    FOLDER/model/version.json   which one; gone while it changes

No process serves it: whoever needs a version first brings it, and the others wait for the lock, which falls with its holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeGuard

from hpcrl.checkpoint.publish.assemble import Reads, apply_patches, check_tensors, copy_base, unlike
from hpcrl.checkpoint.publish.files import map_models
from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import MARKER, Version, read_chain, read_record, write_version
from hpcrl.run.disk import PATIENCE_S, remove_tree
from hpcrl.run.errors import host
from hpcrl.run.failpoints import reach
from hpcrl.run.locks import try_lock
from hpcrl.run.stop import StopFlag, back_off, wait_for

_MIB = 2**20


@dataclass(frozen=True)
class Loaded:
    """A version in the node's memory.

    Attributes:
        path: in Hugging Face layout.
        hash: of the tensors in it.
    """

    version: int
    path: Path
    hash: str


class NodeWeights:
    """The weights of a node, for one of its processes. Several may be on one folder, in one process or many.

    Args:
        folder: local to the node, of one attempt; made if it is not there.
        source: of all published versions.
        wait_s: how long others of the node may take with a version.
        threads: tensors changed and compared at the same time.

    Attributes:
        reads: what this one read from the run's file system.
    """

    def __init__(self, folder: Path, source: Path, *, wait_s: float, threads: int = 1, stop: StopFlag | None = None) -> None:
        self._folder, self._source, self._wait_s, self._stop = folder, source, wait_s, stop
        self._model, self._threads = folder / "model", threads
        self.reads = Reads()

    @contextmanager
    def bring(self, version: int, expect_hash: str) -> Iterator[Loaded]:
        """A version in the node's memory, which stays as it is inside; a newer one if the node holds that already.

        Raises:
            WeightsError: it cannot be put together: a part is missing or damaged, its hash is another, or there is no room.
            DeadlineExceeded: another process of the node takes too long.
            Stopped: the role was asked to stop.
        """
        descriptor = self._open()
        try:
            while True:
                self._lock(descriptor, fcntl.LOCK_SH)
                held = self._held()
                if _serves(held, version, expect_hash):
                    yield Loaded(held.version, self._model, held.hash)
                    return
                self._lock(descriptor, fcntl.LOCK_EX)
                # Another process may have brought it meanwhile.
                held = self._held()
                if not _serves(held, version, expect_hash):
                    self._advance(held, version, expect_hash)
        finally:
            os.close(descriptor)

    def distrust(self) -> None:
        """Have the next :meth:`bring` start from a base: what the node holds is not what it should be.

        Raises:
            DeadlineExceeded, Stopped: as :meth:`bring`.
        """
        descriptor = self._open()
        try:
            self._lock(descriptor, fcntl.LOCK_EX)
            (self._model / MARKER).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed(error) from error

    def _lock(self, descriptor: int, kind: int) -> None:
        what = f"the lock {self._folder / 'lock'}, which another process of this node holds to load or change its weights"
        wait_for(what, partial(try_lock, descriptor, kind), seconds=self._wait_s, stop=self._stop, pauses=back_off(0.002, 0.05))

    def _held(self) -> Version | None:
        try:
            return read_record(self._model)
        except WeightsError:
            return None

    def _advance(self, held: Version | None, version: int, expect_hash: str) -> None:
        """Under the lock: from what is held, or from a base."""
        chain = read_chain(self._source, version, built_on=None if held is None else held.hash, seconds=PATIENCE_S)
        wanted = chain[-1]
        if wanted.hash != expect_hash:
            raise WeightsError(f"version {version} in {self._source} has hash {wanted.hash}, and {expect_hash} was announced")
        try:
            reach("node.begin", self._folder)
            (self._model / MARKER).unlink(missing_ok=True)
            reach("node.unmarked", self._folder)
            if chain[0].kind == "base":
                self._copy(chain[0])
                held, chain = chain[0], chain[1:]
            tensors = map_models(self._model)
            changed = apply_patches(self._source, tensors, chain, self.reads, threads=self._threads)
            reach("node.patched", self._folder)
            if held is not None and (lacking := unlike(held, wanted, changed)):
                raise WeightsError(f"the patches up to version {version} in {self._source} leave out {lacking[0]}")
            check_tensors(tensors, wanted, changed, self._model, threads=self._threads)
            reach("node.checked", self._folder)
            write_version(self._model, wanted, durable=False)
            reach("node.done", self._folder)
        except OSError as error:
            raise self._failed(error) from error

    def _copy(self, base: Version) -> None:
        if self._model.exists():
            remove_tree(self._model)
        self._model.mkdir(mode=0o700)
        copy_base(self._source, self._model, base, self.reads)

    def _failed(self, error: OSError) -> WeightsError:
        what = f"host {host()}: the policy weights cannot be brought to {self._folder}: {error.filename or ''} {error.strerror}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return WeightsError(what)
        there = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        space = shutil.disk_usage(there)
        free = f"{space.free / _MIB:.0f} of {space.total / _MIB:.0f} MiB free"
        return WeightsError(
            f"{what}; its file system has {free}, see `df -h {there}`; it must hold one copy of the weights: mount a larger "
            "one (in a container: --shm-size)"
        )


def _serves(held: Version | None, version: int, expect_hash: str) -> TypeGuard[Version]:
    return held is not None and (held.version > version or (held.version == version and held.hash == expect_hash))
