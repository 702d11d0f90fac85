"""Blocks of ports that runs claim on a host.

Seconds pass between the look whether a block is free and the first server in it, and two runs that start together on a node
would choose the same. So each binds a socket without a place in the file system, whose name says block and run, before it
looks: Linux shows those names to everybody on the host and drops them with the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from hpcrl.plan.ports import Range

_PREFIX = "hpcrl-ports/"
_NAMES = Path("/proc/net/unix")


class PortClaims:
    """What one process claims for its run, until it ends or lets go."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._held: dict[Range, socket.socket] = {}

    def claim(self, blocks: Sequence[Range]) -> tuple[Range, ...]:
        """Claim blocks; returns those that another run claims as well.

        Of two runs that claim a block at the same time at least one is told so.
        """
        for block in blocks:
            if block not in self._held:
                held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                # Without abstract names, the look at the ports must do.
                with contextlib.suppress(OSError):
                    held.bind(f"\0{_PREFIX}{block[0]}-{block[1]}/{self._run_id}/{os.getpid()}")
                self._held[block] = held
        others = _claimed_by_others(self._run_id)
        return tuple(block for block in blocks if any(block[0] < end and first < block[1] for first, end in others))

    def keep(self, ports: Range) -> None:
        """Let go of all blocks that have none of these ports."""
        for block in [block for block in self._held if not (block[0] < ports[1] and ports[0] < block[1])]:
            self._held.pop(block).close()

    def close(self) -> None:
        """Let go of everything."""
        self.keep((0, 0))


def _claimed_by_others(run_id: str) -> list[Range]:
    try:
        lines = _NAMES.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, mark, name = line.partition(f" @{_PREFIX}")
        parts = name.split("/")
        if mark and len(parts) == 3 and parts[1] != run_id:
            first, _, end = parts[0].partition("-")
            with contextlib.suppress(ValueError):
                found.append((int(first), int(end)))
    return found
