"""The data plane's own processes in a run, and how a role process finds them.

Group ``queue`` of the plan: rank 0 is the controller, every further rank a storage unit.
"""

from __future__ import annotations

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import DataPlane
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec


def serve_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> None:
    """Be the queue process that the spec names until the stop; its endpoint is published once it listens."""
    from hpcrl.dataplane.transferqueue.server import capacity_blocks, serve_controller, serve_storage

    identity, key = spec.identity, attempt.run.key

    def publish(endpoint: object) -> None:
        rendezvous.publish(identity.name, endpoint)

    if identity.rank == 0:
        serve_controller(address=identity.address, ports=identity.ports, key=key, publish=publish, stop=stop)
    else:
        blocks = capacity_blocks(recipe, sum(spec.processes.values()))
        serve_storage(
            address=identity.address, ports=identity.ports, capacity_blocks=blocks, key=key, publish=publish, stop=stop
        )


def connect_queue(spec: ProcessSpec, recipe: Recipe, attempt: Attempt, rendezvous: Rendezvous, stop: StopFlag) -> DataPlane:
    """Wait until all queue processes listen, then connect this role process to them.

    Raises:
        DeadlineExceeded: they do not listen within ``limits.start_s``.
    """
    names = [f"{QUEUE_GROUP}.{rank}" for rank in range(spec.processes[QUEUE_GROUP])]
    controller, *storage = rendezvous.gather(names, seconds=recipe.limits.start_s)
    return connect(
        {"controller": controller, "storage": storage},
        recipe,
        group=spec.identity.group,
        rank=spec.identity.rank,
        processes=spec.processes,
        attempt=attempt.number,
        key=attempt.run.key,
        stop=stop,
    )
