"""A copy of the published versions that an engine needs, on a host that does not see the trainer's file system.

::

    FOLDER/v000007/           a version, whole
    FOLDER/lock               of who fetches
    FOLDER/fetching/v000008/  what has come of one so far; the next try goes on from there
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.retain import read_previous, retain
from hpcrl.checkpoint.publish.versions import MARKER, Version, read_version, version_path
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.fetch import Fetcher
from hpcrl.run.disk import remove_tree, rename
from hpcrl.run.errors import host
from hpcrl.run.locks import try_lock
from hpcrl.run.stop import StopFlag, back_off, wait_for


class Mirror:
    """Keeps a folder of versions like the trainer's, with what the newest one is put together from.

    Args:
        folder: local, of one attempt; made if it is not there. Several processes of a node may keep one.
        wait_s: how long another of them may take with a version.
    """

    def __init__(self, folder: Path, fetcher: Fetcher, *, wait_s: float, stop: StopFlag | None = None) -> None:
        self._folder, self._fetching, self._fetcher = folder, folder / "fetching", fetcher
        self._wait_s, self._stop = wait_s, stop

    def bring(self, version: int, hash: str) -> None:
        """Fetch a version, and those that it is built on as far as they are not here; older ones go.

        Args:
            hash: that it was announced with.

        Raises:
            TransportError: it did not come whole. What came stays, and the next call goes on from there.
            DeadlineExceeded: another process of this node takes too long.
            Stopped: the role was asked to stop.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock():
                self._bring(version, hash)
        except (OSError, WeightsError) as error:
            raise TransportError(f"{host()}: version {version} cannot be kept in {self._folder}: {error}") from error

    def _bring(self, version: int, hash: str) -> None:
        self._fetching.mkdir(exist_ok=True)
        one, chain = self._record(version, hash), []
        while not self._is_here(one):
            chain.append(one)
            if one.previous is None:
                break
            one = self._record(one.previous, one.previous_hash)
        for one in reversed(chain):
            self._complete(one)
        retain(self._folder, read_previous(self._folder), keep_last=1)
        remove_tree(self._fetching)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            what = f"another process of {host()} to have fetched a version into {self._folder}"
            take = partial(try_lock, descriptor, fcntl.LOCK_EX)
            wait_for(what, take, seconds=self._wait_s, stop=self._stop, pauses=back_off())
            yield
        finally:
            os.close(descriptor)

    def _record(self, number: int, hash: str) -> Version:
        """Of a version that is here, or else the trainer's."""
        if self._is_version(number, hash):
            return read_version(self._folder, number)
        folder = version_path(self._fetching, number)
        record = self._started(number)
        if record is None or record.hash != hash:
            if folder.exists():
                remove_tree(folder)
            folder.mkdir()
            (folder / MARKER).write_bytes(self._fetcher.read(f"{folder.name}/{MARKER}"))
            record = read_version(self._fetching, number)
        if record.hash != hash:
            raise WeightsError(f"the trainer's version {number} has hash {record.hash}, and {hash} was announced")
        return record

    def _started(self, number: int) -> Version | None:
        try:
            return read_version(self._fetching, number)
        except WeightsError:
            return None

    def _is_here(self, one: Version) -> bool:
        return self._is_version(one.version, one.hash)

    def _is_version(self, number: int, hash: str) -> bool:
        try:
            return read_version(self._folder, number).hash == hash
        except WeightsError:
            return False

    def _complete(self, one: Version) -> None:
        folder, target = version_path(self._fetching, one.version), version_path(self._folder, one.version)
        for record in one.files:
            if not (folder / record.name).exists():
                self._fetcher.fetch(f"{folder.name}/{record.name}", record, folder / record.name)
        if target.exists():
            remove_tree(target)
        rename(folder, target)
