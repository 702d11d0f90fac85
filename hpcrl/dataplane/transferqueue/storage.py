"""Being a storage unit: a further process of the queue, on a node whose rows others need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.transferqueue.durable import DurableData
from hpcrl.run.errors import host
from hpcrl.run.stop import StopFlag

Publish = Callable[[dict[str, Any]], None]


def serve_storage(
    *, who: str, life: int, node: str, address: str, port: int, key: str, folder: Path, publish: Publish, stop: StopFlag
) -> None:
    """Keep rows until the stop. One that is started again has what the last one held.

    Args:
        who, life, node: of this process.
        folder: the attempt's, in the node's shared memory.
        publish: called with the endpoint, JSON-like, when it listens.

    Raises:
        DataPlaneError: the port is busy, the folder cannot be used, or a thread of the unit died.
    """
    compat.use_key(key)
    data = DurableData(folder, who=who, life=life, node=node)
    try:
        unit = compat.start_storage(address, port, data, who)
        try:
            publish(compat.describe(unit))
            while not stop.sleep(0.5):
                if not compat.storage_alive(unit):
                    raise DataPlaneError(f"storage unit {who} on {host()} died; read this process's log for the exception")
        finally:
            unit.shutdown()
    finally:
        data.close()
