"""How a role process gets its data plane, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.member import Member
from hpcrl.dataplane.memory import MemoryHub, MemoryPlane
from hpcrl.dataplane.plane import LedgerPlane
from hpcrl.dataplane.store import INLINE_BYTES, NodeStore
from hpcrl.plan.edges import Edge, crosses
from hpcrl.recipe import Recipe
from hpcrl.run.stop import StopFlag

LIVES = 256


def life_of(attempt: int, incarnation: int) -> int:
    """The life of a process of that attempt which was restarted so often in it.

    Raises:
        ValueError: it was restarted too often.
    """
    if not 0 <= incarnation < LIVES:
        raise ValueError(f"incarnation {incarnation}: a process may be restarted {LIVES - 1} times in an attempt")
    return attempt * LIVES + incarnation


@dataclass(frozen=True)
class QueueAddress:
    """Where the data plane is, as a process sees it.

    Attributes:
        desk: endpoint of the desk, JSON-like.
        storage: endpoints of the storage units, by rank.
        folder: of the attempt, in this node's shared memory.
        node: name of this node.
        across: columns that some process needs on another node.
        unit: index of the storage unit to write to.
        inline_bytes: columns of a block up to here travel within the operations.
    """

    desk: Mapping[str, Any]
    folder: Path
    node: str
    storage: Sequence[Mapping[str, Any]] = ()
    across: frozenset[Edge] = frozenset()
    unit: int = 0
    inline_bytes: int = INLINE_BYTES

    def to_json(self) -> str:
        """To hand it to another process of the node."""
        value = {**asdict(self), "folder": str(self.folder), "across": sorted(self.across)}
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> QueueAddress:
        """Back from :meth:`to_json`."""
        value = json.loads(text)
        across = frozenset((stream, column) for stream, column in value.pop("across"))
        return cls(folder=Path(value.pop("folder")), across=across, **value)


def connect(
    queue: MemoryHub | QueueAddress,
    recipe: Recipe,
    *,
    group: str,
    rank: int,
    processes: Mapping[str, int],
    attempt: int = 1,
    incarnation: int = 0,
    key: str = "",
    stop: StopFlag | None = None,
    lease_s: float = 30.0,
) -> DataPlane:
    """Connect one process of a role. Deadlines are those of the recipe's limits.

    Args:
        queue: the hub that the threads of this process share, or where the queue's own processes are.
        rank: number of the process within its group, as in ``Identity.rank`` where each replica is one process.
        processes: processes of every group of the recipe.
        attempt: number of the attempt, from 1.
        incarnation: how often this process was restarted within the attempt.
        key: the run's secret; the hub needs none.
        stop: ends waits, for room or for rows.
        lease_s: how long rows stay this process's without a word of it [s].

    Raises:
        DataPlaneError: the desk does not answer.
    """
    member = Member(recipe=recipe, group=group, rank=rank, processes=processes, attempt=attempt, incarnation=incarnation)
    limits, life = recipe.limits, life_of(attempt, incarnation)
    if isinstance(queue, MemoryHub):
        wait_s = limits.wait_s
        return MemoryPlane(member, queue, life=life, wait_s=wait_s, lease_s=lease_s, stop=stop)
    from hpcrl.dataplane.desk.client import DeskClient

    mover = None
    if crosses(recipe.groups[group].role, queue.across):
        # Imports torch; a run on one node, and a role whose rows stay on its own, need none of it.
        from hpcrl.dataplane.transferqueue.mover import Mover

        ids, call_s = member.row_ids(), limits.call_s
        mover = Mover(member.name, queue.storage, key=key, unit=queue.unit, ids=ids, call_s=call_s, stop=stop)
    store = NodeStore(
        queue.folder,
        who=member.name,
        life=life,
        node=queue.node,
        across=queue.across,
        transport=mover,
        inline_bytes=queue.inline_bytes,
    )
    desk = DeskClient(member.name, queue.desk, key=key, call_s=limits.call_s, stop=stop)
    try:
        return LedgerPlane(member, desk, store, life=life, wait_s=limits.wait_s, lease_s=lease_s)
    except BaseException:
        desk.close()
        store.close()
        raise
