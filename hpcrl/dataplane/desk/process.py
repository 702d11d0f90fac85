"""Being the desk: the process ``queue.0`` of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcrl.dataplane.desk.keeper import LedgerKeeper
from hpcrl.dataplane.desk.keys import curve_pair
from hpcrl.dataplane.desk.server import Desk
from hpcrl.dataplane.ledger.rules import rules_of
from hpcrl.dataplane.shm.folders import Claim
from hpcrl.recipe import Recipe
from hpcrl.run.stop import StopFlag

Publish = Callable[[dict[str, Any]], None]


def serve_desk(
    recipe: Recipe,
    processes: Mapping[str, int],
    *,
    address: str,
    port: int,
    key: str,
    folder: Path,
    history: Path,
    publish: Publish,
    stop: StopFlag,
) -> None:
    """Keep the ledger and answer on a port until the stop. One that is started again goes on where the last one was killed.

    Args:
        folder: the attempt's, in the node's shared memory.
        publish: called with the endpoint, JSON-like, when it listens.

    Raises:
        DataPlaneError: the port is busy, or the folder cannot be used.
    """
    claim = Claim(folder)
    try:
        keeper = LedgerKeeper(rules_of(recipe, processes), folder, history)
        try:
            desk = Desk(address, port, curve_pair(key), keeper)
            try:
                publish({"ip": address, "port": port})
                desk.serve(stop)
            finally:
                desk.close()
        finally:
            keeper.close()
    finally:
        claim.release()
