"""CURVE on the sockets between processes of a run, with keys made from the run's secret.

A peer without the secret does not know the server's public key either, and never gets past the handshake.
"""

from __future__ import annotations

import hashlib
from typing import Any

import zmq
from zmq.utils import z85

Pair = tuple[bytes, bytes]


def curve_pair(key: str, purpose: str = "queue") -> Pair:
    """Public and secret key, z85, that all peers of a run share.

    Args:
        purpose: peers of another one have another pair.
    """
    # libsodium takes any 32 bytes as a Curve25519 secret key.
    secret = z85.encode(hashlib.sha256(f"hpcrl {purpose}\0{key}".encode()).digest())
    return zmq.curve_public(secret), secret


def guard_server(socket: zmq.Socket[Any], pair: Pair) -> None:
    """Let a socket, before it binds, hear only peers that hold the run's secret."""
    socket.curve_secretkey = pair[1]
    socket.curve_server = True


def guard_client(socket: zmq.Socket[Any], pair: Pair) -> None:
    """Let a socket, before it connects, speak only to a server that holds the run's secret."""
    socket.curve_publickey, socket.curve_secretkey = pair
    socket.curve_serverkey = pair[0]
