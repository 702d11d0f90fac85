"""The processes of a queue: one controller, and storage units. Each runs in the calling process until it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.transferqueue.sampler import BlockSampler
from hpcrl.recipe import Recipe
from hpcrl.run.errors import host
from hpcrl.run.stop import StopFlag

Publish = Callable[[dict[str, Any]], None]


def serve_controller(*, address: str, ports: Sequence[int], key: str, publish: Publish, stop: StopFlag) -> None:
    """Be the queue's controller on the first two ports of an address until the stop.

    Args:
        key: the run's secret; peers without it are not heard.
        publish: called once with the endpoint, JSON-like, when it listens.

    Raises:
        DataPlaneError: a port is busy, or the controller died.
    """
    compat.use_key(key)
    controller = compat.start_controller(address, ports, BlockSampler())
    try:
        publish(compat.describe(controller))
        _stay("controller", lambda: compat.controller_alive(controller), stop)
    finally:
        compat.stop_controller(controller)


def serve_storage(
    *, address: str, ports: Sequence[int], capacity_blocks: int, key: str, publish: Publish, stop: StopFlag
) -> None:
    """Be one storage unit on the first port of an address until the stop.

    Args:
        capacity_blocks: blocks that the unit holds, of :func:`capacity_blocks` of the recipe.
        key: the run's secret; peers without it are not heard.
        publish: called once with the endpoint, JSON-like, when it listens.

    Raises:
        DataPlaneError: the port is busy, or the unit died.
    """
    compat.use_key(key)
    unit = compat.start_storage(address, ports, capacity_blocks)
    try:
        publish(compat.describe(unit))
        _stay("storage unit", lambda: compat.storage_alive(unit), stop)
    finally:
        unit.shutdown()


def capacity_blocks(recipe: Recipe, processes: int) -> int:
    """Blocks that every storage unit must be able to hold, so that the streams' capacities fit whatever way blocks spread.

    Args:
        processes: processes of the run; each may put one block of a stream beyond its share of the capacity.
    """
    return sum(stream.capacity_rows + processes for stream in recipe.streams)


def _stay(what: str, alive: Callable[[], bool], stop: StopFlag) -> None:
    while not stop.sleep(0.5):
        if not alive():
            raise DataPlaneError(f"the queue's {what} on {host()} died; read this process's log for the exception")
