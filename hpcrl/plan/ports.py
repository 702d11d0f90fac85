"""Which TCP ports a run uses on its nodes: one block, the same on all of them, picked from the run id.

The grid of blocks is the same everywhere and the run id only orders it, so nodes with different ephemeral ranges still try
the blocks that they have in common in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from hpcrl.plan.allocation import Node
from hpcrl.run.addresses import is_free
from hpcrl.run.errors import CheckFailed

PORTS_PER_PROCESS = 4
BLOCK = 256
FIRST = 10_240
# Sites often give srun the ports from 60001 on (SrunPortRange).
END = 60_000

Range = tuple[int, int]


def candidates(run_id: str, count: int | None, ephemeral: Iterable[Range], size: int = BLOCK) -> tuple[Range, ...]:
    """Port ranges (first, end), half open, in the order in which a run tries them; at most ``count``, or all.

    Args:
        ephemeral: first and last port of each range to keep clear of.
        size: ports needed; rounded up to whole blocks.
    """
    length = -(-size // BLOCK) * BLOCK
    avoid = [(first, last + 1) for first, last in ephemeral]
    fitting = [
        (first, first + length)
        for first in range(FIRST, END - length + 1, BLOCK)
        if not _meets_any((first, first + length), avoid)
    ]
    fitting.sort(key=lambda block: hashlib.sha256(f"{run_id}:{block[0]}".encode()).digest())
    return tuple(fitting[:count])


def probe_busy(address: str, blocks: Sequence[Range]) -> tuple[Range, ...]:
    """Those of the blocks in which a port of this host cannot be bound on an address now."""
    return tuple(block for block in blocks if not all(is_free(address, port) for port in range(*block)))


def choose_block(run_id: str, nodes: Sequence[Node], size: int) -> Range:
    """The first candidate that is clear of every node's ephemeral range and that no node reports busy.

    Raises:
        CheckFailed: none is left; names the nodes that stand in the way.
    """
    # A set: thousands of nodes mostly report the same few ranges.
    blocks = candidates(run_id, None, sorted({node.ephemeral for node in nodes}), size)
    busy = sorted({block for node in nodes for block in node.busy})
    for block in blocks:
        if not _meets_any(block, busy):
            return block
    if not blocks:
        ranges = ", ".join(f"{first}-{last}" for first, last in sorted({node.ephemeral for node in nodes}))
        raise CheckFailed(
            [
                f"no {size} ports in a row between {FIRST} and {END} are outside the nodes' ephemeral ranges ({ranges}); "
                "run fewer processes on a node, or narrow net.ipv4.ip_local_port_range"
            ]
        )
    names = [node.name for node in nodes if node.busy]
    raise CheckFailed(
        [
            f"all {len(blocks)} port blocks are busy on some node: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}; "
            "see what listens there (`ss -ltnp`), end left-over runs, or give the nodes back"
        ]
    )


def _meets_any(block: Range, others: Iterable[Range]) -> bool:
    return any(block[0] < end and first < block[1] for first, end in others)
