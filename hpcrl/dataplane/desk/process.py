"""Being the desk: the process ``queue.0`` of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.dataplane.desk.keeper import LedgerKeeper
from hpcrl.dataplane.desk.restore import Reached, Restorer, has_snapshots
from hpcrl.dataplane.desk.server import Desk
from hpcrl.dataplane.desk.snapshots import Snapshots
from hpcrl.dataplane.ledger.rules import Rules, rules_of
from hpcrl.dataplane.shm.folders import Claim
from hpcrl.dataplane.snapshot.request import Request
from hpcrl.recipe import Recipe
from hpcrl.run.curve import curve_pair
from hpcrl.run.directory import Attempt
from hpcrl.run.stop import StopFlag

Publish = Callable[[dict[str, Any]], None]
DESK = "queue.0"


@dataclass(frozen=True, kw_only=True)
class Durability:
    """What a desk needs to keep rows beyond its node, and to take over those of earlier attempts.

    Attributes:
        node, life: of the desk's process.
        reached: what was trained before this attempt.
        storage: gives the endpoints of the storage units once they are known.
    """

    attempt: Attempt
    node: str
    life: int
    reached: Reached
    storage: Callable[[], Sequence[Mapping[str, Any]]] = tuple


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
    durability: Durability | None = None,
) -> None:
    """Keep the ledger and answer on a port until the stop. One that is started again goes on where the last one was killed.

    Args:
        folder: the attempt's, in the node's shared memory.
        publish: called with the endpoint, JSON-like, when it listens.
        durability: None = neither snapshots nor rows of earlier attempts.

    Raises:
        DataPlaneError: the port is busy, or the folder cannot be used.
    """
    claim = Claim(folder)
    try:
        rules = rules_of(recipe, processes)
        restore = snapshots = None
        if durability is not None:
            across = processes.get("queue", 1) > 1
            restore = _restorer(recipe, rules, folder, durability, across=across)
            if recipe.limits.snapshot_s > 0:
                snapshots = _snapshots(recipe, folder, key, durability)
        keeper = LedgerKeeper(rules, folder, history, restore=restore, snapshots=snapshots)
        try:
            desk = Desk(address, port, curve_pair(key), keeper)
            try:
                publish({"ip": address, "port": port})
                desk.serve(stop)
                keeper.finish()
            finally:
                desk.close()
        finally:
            keeper.close()
    finally:
        claim.release()


def _restorer(recipe: Recipe, rules: Rules, folder: Path, durability: Durability, *, across: bool) -> Restorer:
    return Restorer(
        durability.attempt,
        recipe,
        rules,
        reached=durability.reached,
        folder=folder,
        node=durability.node,
        who=DESK,
        life=durability.life,
        inline=across,
    )


def _snapshots(recipe: Recipe, folder: Path, key: str, durability: Durability) -> Snapshots:
    attempt, limits = durability.attempt, recipe.limits
    request = Request(
        run=str(attempt.run.path),
        attempt=attempt.number,
        node=durability.node,
        folder=str(folder),
        streams=recipe.streams,
        ledger_seq=0,
        key=key,
        call_s=limits.call_s,
    )
    return Snapshots(request, storage=durability.storage, every_s=limits.snapshot_s, kept=has_snapshots(attempt))
