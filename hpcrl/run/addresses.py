"""Addresses of IPv4 and IPv6 alike."""

from __future__ import annotations

import socket
from contextlib import suppress


def family_of(address: str) -> socket.AddressFamily:
    """Of a socket for a numeric address. Pure."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def host_part(address: str) -> str:
    """As it stands before ``:port`` in a URL. Pure."""
    return f"[{address}]" if ":" in address else address


def is_free(address: str, port: int) -> bool:
    """Whether a TCP port of this host can be bound on an address now."""
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        # As servers do, so that a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((address, port))
            return True
    return False
