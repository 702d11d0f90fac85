"""Serves published versions to peers that share no file system with the trainer, and hold the run's secret.

Connections are encrypted and authenticated (CURVE): a peer without the secret never gets past the handshake.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq

from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.run.curve import curve_pair, guard_server
from hpcrl.run.errors import host
from hpcrl.run.failpoints import reach
from hpcrl.run.sockets import bind, own_context

PURPOSE = "weights"
CHUNK = 1 << 20
# A version's folder and a file in it.
_NAME = re.compile(r"v\d{6,}/\w[\w.\-]*", re.ASCII)
_LOOK_MS = 100


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a file.

    Attributes:
        name: within the folder of all versions.
        length: at most; 0 asks only whether the file is there.
    """

    name: str
    offset: int
    length: int


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The answer; its bytes are the message's next part.

    Attributes:
        size: of the whole file; -1 if it is not there.
        error: why not.
    """

    name: str
    offset: int
    size: int
    error: str = ""


class FileServer:
    """Answers from a thread until it is closed.

    Args:
        folder: of all versions; nothing outside of it is given.
        address, port: where to listen.
        key: the run's secret.

    Raises:
        TransportError: the port is taken.
    """

    def __init__(self, folder: Path, *, address: str, port: int, key: str) -> None:
        self._folder = folder
        # Only the end of a context waits until the port is free.
        self._context = own_context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        guard_server(self._socket, curve_pair(key, PURPOSE))
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            bind(self._socket, address, port)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise TransportError(
                f"{host()}: port {port} of {address}, planned for serving policy versions, cannot be bound: {error}; another "
                "program of this node uses it"
            ) from error
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="weights-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port. Safe to call twice."""
        self._closing = True
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._closing:
                if self._socket.poll(_LOOK_MS):
                    peer, *parts = self._socket.recv_multipart()
                    answer, data = self._answer(parts)
                    self._socket.send_multipart([peer, msgspec.msgpack.encode(answer), data], copy=False)
        finally:
            self._context.destroy(linger=0)

    def _answer(self, parts: list[bytes]) -> tuple[Piece, bytes]:
        try:
            ask = msgspec.msgpack.decode(b"".join(parts), type=Ask)
        except msgspec.MsgspecError as error:
            return Piece("", 0, -1, f"no question: {error}"), b""
        try:
            if not _NAME.fullmatch(ask.name):
                raise FileNotFoundError(f"{ask.name!r} is no file of a version")
            reach("transport.chunk", ask.name)
            size, data = _read(self._folder / ask.name, ask.offset, min(ask.length, CHUNK))
        except (OSError, OverflowError) as error:
            return Piece(ask.name, ask.offset, -1, str(error)), b""
        return Piece(ask.name, ask.offset, size), data


def _read(path: Path, offset: int, length: int) -> tuple[int, bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status: Any = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{path.name} is no file")
        return status.st_size, os.pread(descriptor, length, offset) if length > 0 else b""
    finally:
        os.close(descriptor)
