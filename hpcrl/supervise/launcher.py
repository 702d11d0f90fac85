"""How an ignitor on this machine and its launcher talk from one attempt to the next, so that spares outlive an attempt.

Over a socket, in whole messages: the ignitor says the exit code of its attempt, the launcher the number of the next one. Either
sees the end of the other by the end of the socket.
"""

from __future__ import annotations

import socket


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends; they close with their process, and keep messages whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def hear_number(ours: socket.socket) -> int | None:
    """What the other side says next; None if it is gone."""
    try:
        said = ours.recv(32)
    except OSError:
        return None
    return int(said) if said else None


def say_number(ours: socket.socket, number: int) -> bool:
    """Whether the other side is there to hear it."""
    try:
        ours.send(str(number).encode())
    except OSError:
        return False
    return True


class Launcher:
    """The launcher, as the ignitor sees it.

    Args:
        descriptor: of a socket, or anything else if nobody listens.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError:
            return

    def next(self, code: int) -> int | None:
        """Say how the attempt ended, and wait for the number of the next one; None if there is none."""
        if self._socket is None or not say_number(self._socket, code):
            return None
        return hear_number(self._socket)
