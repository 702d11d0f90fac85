"""The data plane's own processes in a run, and how a role process finds them.

Group ``queue`` of the plan: rank 0 is the desk, every further rank a storage unit.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcrl.dataplane.connect import QueueAddress, connect, life_of
from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.room import choose_root
from hpcrl.dataplane.shm.folders import Claim, attempt_folder, remove_attempt, sweep
from hpcrl.plan.edges import edges_across
from hpcrl.plan.plan import Plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec

log = logging.getLogger(__name__)

# A node whose shared memory is smaller, as containers' often is, uses its own temporary folder.
LEAST_SHARED_BYTES = 256 << 20


def shared_folder(attempt: Attempt) -> Path:
    """Where the rows of an attempt lie on this node; the same for all its processes.

    Raises:
        DataPlaneError: the node has no room for any.
    """
    root = choose_root(LEAST_SHARED_BYTES, Path(tempfile.gettempdir()))
    return attempt_folder(attempt.run.run_id, attempt.number, root)


@contextmanager
def shared_memory(attempt: Attempt) -> Iterator[None]:
    """Keep the attempt's folder meanwhile; afterwards it is gone, unless another ignitor of the node still needs it.

    What dead runs of this user left is removed first.

    Raises:
        DataPlaneError: the node has no room, or the folder cannot be made.
    """
    folder = shared_folder(attempt)
    for left in sweep(folder.parent.parent):
        log.info("removed %s, left by a run that was killed", left)
    claim = Claim(folder)
    try:
        yield
    finally:
        claim.release()
        remove_attempt(folder)


def serve_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> None:
    """Be the queue process that the spec names until the stop; its endpoint is published once it listens."""
    identity, key = spec.identity, attempt.run.key
    folder = shared_folder(attempt)

    def publish(endpoint: object) -> None:
        rendezvous.publish(identity.name, endpoint)

    if identity.rank == 0:
        from hpcrl.dataplane.desk.process import serve_desk

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
        )
    else:
        from hpcrl.dataplane.transferqueue.storage import serve_storage

        serve_storage(
            who=identity.name,
            life=life_of(attempt.number, spec.incarnation),
            node=spec.node,
            address=identity.address,
            port=identity.ports[0],
            key=key,
            folder=folder,
            publish=publish,
            stop=stop,
        )


def connect_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> DataPlane:
    """Wait until all queue processes listen, then connect this role process to them.

    Raises:
        DeadlineExceeded: they do not listen within ``limits.start_s``.
    """
    names = [f"{QUEUE_GROUP}.{rank}" for rank in range(spec.processes[QUEUE_GROUP])]
    desk, *storage = rendezvous.gather(names, seconds=recipe.limits.start_s)
    across = frozenset(spec.across)
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
