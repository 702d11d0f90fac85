"""The data plane's own processes in a run, and how a role process finds them.

Group ``queue`` of the plan: rank 0 is the desk, every further rank a storage unit.

Supervisors import this too, and ignitors before they know what to start, so the data plane is imported where it is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.plan.edges import Edge, crosses, edges_across
from hpcrl.plan.plan import Plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecords
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec

if TYPE_CHECKING:
    from hpcrl.dataplane.interface import DataPlane

log = logging.getLogger(__name__)

# Less than the time that queue processes have to end (QUEUE_GRACE_S), by their own end.
UNIT_WAITS_S = 8.0


@contextmanager
def shared_memory(attempt: Attempt) -> Iterator[None]:
    """Keep the attempt's folder meanwhile; afterwards it is gone, unless another ignitor of the node still needs it.

    What dead runs of this user left is removed first.

    Raises:
        DataPlaneError: the node has no room, or the folder cannot be made.
    """
    from hpcrl.dataplane.shm.folders import kept_folder, shared_folder, sweep

    for left in sweep(shared_folder(attempt).parent.parent):
        log.info("removed %s, left by a run that was killed", left)
    with kept_folder(attempt):
        yield


def serve_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> None:
    """Be the queue process that the spec names until the stop; its endpoint is published once it listens."""
    from hpcrl.dataplane.connect import life_of
    from hpcrl.dataplane.shm.folders import shared_folder

    identity, key = spec.identity, attempt.run.key
    folder = shared_folder(attempt)

    def publish(endpoint: object) -> None:
        rendezvous.publish(identity.name, endpoint)

    if identity.rank == 0:
        from hpcrl.dataplane.desk.process import Durability, serve_desk
        from hpcrl.dataplane.desk.restore import Reached

        cursor = read_cursor(attempt.run.state)
        units = [f"{QUEUE_GROUP}.{rank}" for rank in range(1, spec.processes[QUEUE_GROUP])]

        def storage() -> list[dict[str, Any]]:
            known = [endpoint for name in units if (endpoint := rendezvous.peek(name)) is not None]
            # A value's index names its unit only among all of them.
            return known if len(known) == len(units) else []

        serve_desk(
            recipe,
            spec.processes,
            address=identity.address,
            port=identity.ports[0],
            key=key,
            folder=folder,
            history=attempt.path / "history",
            publish=publish,
            stop=stop,
            durability=Durability(
                attempt=attempt,
                node=spec.node,
                life=life_of(attempt.number, spec.incarnation),
                reached=Reached(cursor.step, cursor.prompts, cursor.beyond),
                storage=storage,
            ),
        )
    else:
        from hpcrl.dataplane.transferqueue.storage import serve_storage

        ended = _after_desk(attempt, stop)
        if recipe.limits.snapshot_s > 0:
            from hpcrl.dataplane.snapshot.parts import PartWriter

            PartWriter(attempt, spec.node, folder, ended)
        serve_storage(
            who=identity.name,
            life=life_of(attempt.number, spec.incarnation),
            node=spec.node,
            address=identity.address,
            port=identity.ports[0],
            key=key,
            folder=folder,
            publish=publish,
            stop=ended,
        )


def _after_desk(attempt: Attempt, stop: StopFlag) -> StopFlag:
    """Set when the desk, which is asked to stop at the same time, has ended too: its last snapshot needs the units."""
    ended = StopFlag()

    def wait() -> None:
        while not stop.sleep(60.0):
            pass
        records, until = DoneRecords(attempt), time.monotonic() + UNIT_WAITS_S
        while f"{QUEUE_GROUP}.0" not in records.read() and time.monotonic() < until:
            time.sleep(0.2)
        ended.set()

    threading.Thread(target=wait, name="after-desk", daemon=True).start()
    return ended


def connect_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> DataPlane:
    """Wait until all queue processes listen, then connect this role process to them.

    Raises:
        DeadlineExceeded: they do not listen within ``limits.start_s``.
    """
    from hpcrl.dataplane.connect import QueueAddress, connect
    from hpcrl.dataplane.shm.folders import shared_folder

    across = frozenset(spec.across)
    if crosses(recipe.groups[spec.identity.group].role, across):
        # Takes as long as the start of the storage units, which is meanwhile.
        import hpcrl.dataplane.transferqueue.mover  # noqa: F401
    names = [f"{QUEUE_GROUP}.{rank}" for rank in range(spec.processes[QUEUE_GROUP])]
    desk, *storage = rendezvous.gather(names, seconds=recipe.limits.start_s)
    if across:
        log.info("columns that travel between nodes, by storage unit %d: %s", spec.unit, sorted(across))
    return connect(
        QueueAddress(
            desk=desk,
            storage=storage,
            folder=shared_folder(attempt),
            node=spec.node,
            across=across,
            unit=spec.unit,
        ),
        recipe,
        group=spec.identity.group,
        rank=spec.identity.rank,
        processes=spec.processes,
        attempt=attempt.number,
        incarnation=spec.incarnation,
        key=attempt.run.key,
        stop=stop,
    )


def plan_edges(recipe: Recipe, plan: Plan) -> frozenset[tuple[str, str]]:
    """The columns that travel between nodes in this plan."""
    nodes: dict[str, set[str]] = {}
    for process in plan.processes:
        nodes.setdefault(process.group, set()).add(process.node)
    return edges_across(recipe, {group: frozenset(names) for group, names in nodes.items() if group != QUEUE_GROUP})


def nearest_units(plan: Plan) -> Mapping[str, int]:
    """By node, the index of the storage unit that its processes write to: one on the node, or nodes take turns."""
    units = [process.node for process in plan.of_group(QUEUE_GROUP)[1:]]
    names = list(dict.fromkeys(process.node for process in plan.processes))
    if not units:
        return {}
    return {name: units.index(name) if name in units else turn % len(units) for turn, name in enumerate(names)}


def modules_of(recipe: Recipe, group: str, rank: int, across: Collection[Edge]) -> tuple[str, ...]:
    """What a process imports for the data plane, and that takes long."""
    if group == QUEUE_GROUP:
        if rank:
            return ("hpcrl.dataplane.transferqueue.storage", "hpcrl.dataplane.snapshot.parts", "hpcrl.dataplane.connect")
        return ("hpcrl.dataplane.desk.process", "hpcrl.dataplane.connect")
    far = ("hpcrl.dataplane.transferqueue.mover",) if crosses(recipe.groups[group].role, across) else ()
    return ("hpcrl.dataplane.connect", "hpcrl.dataplane.desk.client", *far)
