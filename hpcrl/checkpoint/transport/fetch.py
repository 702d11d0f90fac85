"""Fetches published versions from the trainer of another cluster, piece by piece, and goes on where it was cut off."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.serve import CHUNK, PURPOSE, Ask, Piece
from hpcrl.run.curve import curve_pair, guard_client
from hpcrl.run.digest import Digest, method_of
from hpcrl.run.disk import FileRecord
from hpcrl.run.errors import Stopped, host
from hpcrl.run.sockets import connect, endpoint, shared_context
from hpcrl.run.stop import StopFlag

# Pieces asked for at a time: enough to fill a line of 100 Gbit/s over some milliseconds.
_WINDOW = 16
# Without a sign for so long, what is awaited is asked for again, over a new connection.
_AGAIN_S = 3.0
_LOOK_MS = 250
_PART = ".part"


class Fetcher:
    """A connection to one :class:`~hpcrl.checkpoint.transport.serve.FileServer`; for one thread.

    Args:
        key: the run's secret.
        seconds: the most time without any piece.

    Attributes:
        received: bytes of pieces so far.
    """

    def __init__(self, address: str, port: int, *, key: str, seconds: float, stop: StopFlag | None = None) -> None:
        self._address, self._port, self._where = address, port, endpoint(address, port)
        self._pair, self._seconds, self._stop = curve_pair(key, PURPOSE), seconds, stop or StopFlag()
        self._socket = self._connect()
        self.received = 0

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self._socket.close(linger=0)

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            TransportError: it is not there, or there was no answer.
            Stopped: the role was asked to stop.
        """
        return b"".join(bytes(data) for data in self._pieces(name, 0, None))

    def fetch(self, name: str, record: FileRecord, target: Path) -> None:
        """A file, into ``target``, whole or not at all; what an earlier call had of it is not sent again.

        Raises:
            TransportError: it is not what was written, or is not there, or there was no answer.
            Stopped: the role was asked to stop.
            OSError: it cannot be written.
        """
        if self._fetch(name, record, target) or self._fetch(name, record, target):
            return
        raise TransportError(
            f"{name} from {self._where} is damaged on the way or there: it does not have the checksum {record.digest}"
        )

    def _fetch(self, name: str, record: FileRecord, target: Path) -> bool:
        part = target.with_name(target.name + _PART)
        digest = Digest(method_of(record.digest))
        with open(part, "a+b", buffering=0) as file:
            file.seek(0)
            while held := file.read(CHUNK):
                digest.update(held)
            if file.tell() <= record.size:
                for data in self._pieces(name, file.tell(), record.size):
                    digest.update(data)
                    view = memoryview(data)
                    while len(view):
                        view = view[file.write(view) :]
            whole = file.tell() == record.size and digest.text() == record.digest
        if whole:
            os.replace(part, target)
        else:
            part.unlink()
        return whole

    def _pieces(self, name: str, start: int, size: int | None) -> Iterator[bytes]:
        """A file's bytes from ``start`` on, in order.

        Args:
            size: of the file; None = that is asked first.
        """
        if size is None:
            size = self._await(name, {0: 0})[0].size
        awaited = deque(range(start, size, CHUNK))
        asked: dict[int, int] = {}
        arrived: dict[int, bytes] = {}
        at = start
        while at < size:
            while awaited and len(asked) + len(arrived) < _WINDOW:
                offset = awaited.popleft()
                asked[offset] = min(CHUNK, size - offset)
                self._ask(name, offset, asked[offset])
            piece, data = self._await(name, asked)
            if piece.size != size:
                raise TransportError(f"{name} at {self._where} has {piece.size} bytes, expected {size}")
            if len(data) != asked[piece.offset]:
                raise TransportError(f"{name} at {self._where} ends at byte {piece.offset + len(data)}, expected {size}")
            del asked[piece.offset]
            arrived[piece.offset] = data
            while at in arrived:
                data = arrived.pop(at)
                at += len(data)
                yield data

    def _await(self, name: str, asked: dict[int, int]) -> tuple[Piece, bytes]:
        """The next piece of those that were asked for."""
        began = again = time.monotonic()
        if asked == {0: 0}:
            self._ask(name, 0, 0)
        while True:
            if self._stop.is_set():
                raise Stopped(f"asked to stop while fetching {name} from {self._where}")
            if self._socket.poll(_LOOK_MS):
                head, data = self._socket.recv_multipart()
                piece = msgspec.msgpack.decode(head, type=Piece)
                if piece.name != name or piece.offset not in asked:
                    continue
                if piece.size < 0:
                    raise TransportError(f"{name} cannot be had from {self._where}: {piece.error}")
                self.received += len(data)
                return piece, data
            now = time.monotonic()
            if now - began >= self._seconds:
                raise TransportError(
                    f"{host()}: no answer from {self._where} for {self._seconds:g} s while fetching {name}; the trainer is "
                    "gone, cannot be reached, or is of another run"
                )
            if now - again >= _AGAIN_S:
                again = now
                self._socket.close(linger=0)
                self._socket = self._connect()
                for offset, length in asked.items():
                    self._ask(name, offset, length)

    def _ask(self, name: str, offset: int, length: int) -> None:
        self._socket.send(msgspec.msgpack.encode(Ask(name, offset, length)))

    def _connect(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = shared_context().socket(zmq.DEALER)
        guard_client(socket, self._pair)
        socket.setsockopt(zmq.LINGER, 0)
        connect(socket, self._address, self._port)
        return socket
