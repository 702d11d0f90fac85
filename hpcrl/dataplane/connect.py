"""How a role process gets its data plane, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.member import Member
from hpcrl.dataplane.memory import MemoryHub, MemoryPlane
from hpcrl.recipe import Recipe
from hpcrl.run.stop import StopFlag


def connect(
    queue: MemoryHub | Mapping[str, Any],
    recipe: Recipe,
    *,
    group: str,
    rank: int,
    processes: Mapping[str, int],
    attempt: int = 1,
    incarnation: int = 0,
    key: str = "",
    stop: StopFlag | None = None,
) -> DataPlane:
    """Connect one process of a role. Deadlines are those of the recipe's limits.

    Args:
        queue: the hub that the threads of this process share, or where the servers of the queue listen:
            ``{"controller": endpoint, "storage": [endpoint, …]}``, endpoints as the servers published them, in any order.
        rank: number of the process within its group, as in ``Identity.rank`` where each replica is one process.
        processes: processes of every group of the recipe.
        attempt: number of the attempt, from 1.
        incarnation: how often this process was restarted within the attempt.
        key: the run's secret; the hub needs none.
        stop: ends a put's wait for room.

    Raises:
        DataPlaneError: a server of the queue does not answer.
    """
    member = Member(recipe=recipe, group=group, rank=rank, processes=processes, attempt=attempt, incarnation=incarnation)
    if isinstance(queue, MemoryHub):
        return MemoryPlane(member, queue, wait_s=recipe.limits.wait_s, stop=stop)
    from hpcrl.dataplane.transferqueue.client import TransferQueuePlane

    limits = recipe.limits
    return TransferQueuePlane(member, queue, key=key, call_s=limits.call_s, wait_s=limits.wait_s, stop=stop)
