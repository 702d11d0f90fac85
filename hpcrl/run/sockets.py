"""ZeroMQ contexts that the garbage collector leaves alone.

A context that is collected with an open socket in it waits for ever for that socket, in whichever thread the collector happened
to run. So the sockets of a process are in one context that is never ended: to close them is enough.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import zmq

from hpcrl.run.addresses import host_part

# Encryption is their work, one for each connection, and one thread seals about 450 MiB/s.
IO_THREADS = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
_MOST_SOCKETS = 1 << 16
_lock = threading.Lock()
_context: zmq.Context[Any] | None = None
_owner = 0


def shared_context() -> zmq.Context[Any]:
    """The same one in every call of a process; after a fork, the child's own. Never to be ended."""
    global _context, _owner
    with _lock:
        if _context is None or _owner != os.getpid():
            _context, _owner = own_context(), os.getpid()
            _context.set(zmq.IO_THREADS, IO_THREADS)
            _context.set(zmq.MAX_SOCKETS, min(_MOST_SOCKETS, _context.get(zmq.SOCKET_LIMIT)))
        return _context


def bind(socket: zmq.Socket[Any], address: str, port: int) -> None:
    """Have a socket listen at an address of this host, of IPv4 or IPv6; ``zmq.ZMQError`` if the port is taken."""
    socket.setsockopt(zmq.IPV6, ":" in address)
    socket.bind(endpoint(address, port))


def connect(socket: zmq.Socket[Any], address: str, port: int) -> None:
    """Have a socket connect to an address of IPv4 or IPv6."""
    socket.setsockopt(zmq.IPV6, ":" in address)
    socket.connect(endpoint(address, port))


def endpoint(address: str, port: int) -> str:
    """As ZeroMQ writes it. Pure."""
    return f"tcp://{host_part(address)}:{port}"


def own_context() -> zmq.Context[Any]:
    """A new one, for a caller who ends it so that what was sent goes out."""
    context: zmq.Context[Any] = zmq.Context()
    # Not even when the interpreter ends, where an open socket would keep it from ending.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
    return context
