"""How an engine takes policy versions otherwise than from the run's file system. Imported only in a process that serves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.transport.distributed import Members, Wire, group_name
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.fetch import Fetcher
from hpcrl.checkpoint.transport.memory import open_version
from hpcrl.checkpoint.transport.mirror import Mirror
from hpcrl.engines.client import EngineClient, EngineError
from hpcrl.engines.group_update import Channel, GroupUpdate
from hpcrl.roles.sending import SENT, SERVER_KEY, wire_key
from hpcrl.run.errors import DeadlineExceeded

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)

Pause = Literal["abort", "retract", "in_place"]


class Taken(NamedTuple):
    """What an engine holds now: the version, and its hash where the engine tells one."""

    version: int
    hash: str | None


class _Way(Protocol):
    def take(self, policy: Mapping[str, Any]) -> Taken | None: ...

    def close(self) -> None: ...


class Receiving:
    """Takes versions in the way that is planned for this engine.

    Args:
        folder: of the attempt, in this node's memory.
        pause: see :class:`hpcrl.roles.inference.Inference`.
    """

    def __init__(self, context: RoleContext, engine: EngineClient, folder: Path, *, pause: Pause) -> None:
        self._context, self.way = context, context.ways.get(context.identity.name, "disk")
        self._way: _Way | None = None
        if self.way == "memory":
            self._way = _FromMemory(context, engine, folder, pause)
        elif self.way == "distributed":
            self._way = _FromPeers(context, engine, pause)
        elif self.way == "tcp":
            self._way = _FromAfar(context, engine, folder, pause)
        log.info("weights come by %s", self.way)

    def take(self, policy: Mapping[str, Any]) -> Taken | None:
        """Have the engine run an announced version, or a newer one; None if it is to be taken from the run's file system.

        The engine is paused then.

        Raises:
            EngineError: the engine did not load it, and may hold a mixture; it is paused.
            Stopped: the role was asked to stop.
        """
        if self._way is None or "ranks" not in policy:
            return None
        try:
            return self._way.take(policy)
        except (TransportError, WeightsError, DeadlineExceeded) as error:
            log.warning("version %s did not come by %s, so it is taken from the disk: %s", policy["version"], self.way, error)
            self._context.journal.write("fell_back", version=policy["version"], way=self.way, error=str(error))
            return None

    def close(self) -> None:
        """Let go of everything."""
        if self._way is not None:
            self._way.close()


class _Loads:
    """A way that ends in a folder of this node."""

    def __init__(self, context: RoleContext, engine: EngineClient, pause: Pause) -> None:
        self._context, self._engine, self._pause = context, engine, pause
        self._seconds = context.recipe.limits.call_s

    def load(self, folder: Path, version: int, hash: str) -> Taken:
        self._engine.pause(self._pause)
        update = self._engine.update_weights_from_disk(folder, version, expect_hash=hash)
        return Taken(version, update.weight_hash)

    def close(self) -> None:
        pass


class _FromMemory(_Loads):
    def __init__(self, context: RoleContext, engine: EngineClient, folder: Path, pause: Pause) -> None:
        super().__init__(context, engine, pause)
        self._folder = folder / SENT

    def take(self, policy: Mapping[str, Any]) -> Taken | None:
        version, hash, ranks = int(policy["version"]), str(policy["hash"]), int(policy["ranks"])
        stop = self._context.stop
        with open_version(self._folder, version, hash, ranks=ranks, seconds=self._seconds, stop=stop) as slot:
            return self.load(slot, version, hash)


class _FromAfar(_Loads):
    def __init__(self, context: RoleContext, engine: EngineClient, folder: Path, pause: Pause) -> None:
        super().__init__(context, engine, pause)
        self._mirror_folder = folder / "mirror"
        self._node = NodeWeights(
            folder / "far", self._mirror_folder, wait_s=self._seconds, threads=context.identity.cpus, stop=context.stop
        )
        self._fetcher: Fetcher | None = None

    def take(self, policy: Mapping[str, Any]) -> Taken | None:
        version, hash = int(policy["version"]), str(policy["hash"])
        if self._fetcher is None:
            context = self._context
            where = context.rendezvous.wait(SERVER_KEY, seconds=self._seconds)
            self._fetcher = Fetcher(
                where["address"], int(where["port"]), key=context.key, seconds=self._seconds, stop=context.stop
            )
        Mirror(self._mirror_folder, self._fetcher, wait_s=self._seconds, stop=self._context.stop).bring(version, hash)
        with self._node.bring(version, hash) as brought:
            return self.load(brought.path, brought.version, brought.hash)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()


class _FromPeers:
    def __init__(self, context: RoleContext, engine: EngineClient, pause: Pause) -> None:
        self._context, self._engine, self._pause = context, engine, pause
        self._seconds = context.recipe.limits.call_s
        self._update: GroupUpdate | None = None
        # Of the groups that this engine is in, or could not enter.
        self._generation = 0

    def take(self, policy: Mapping[str, Any]) -> Taken | None:
        members = msgspec.convert(policy.get("members", {}), Members)
        rank = members.rank(self._context.identity.name)
        if rank is None:
            return None
        if members.generation != self._generation:
            self._join(policy, members, rank)
        if self._update is None:
            return None
        self._engine.pause(self._pause)
        version = int(policy["version"])
        try:
            update = self._update.update(version, expect_hash=policy["hash"], seconds=self._seconds)
        except EngineError:
            self._leave()
            raise
        return Taken(version, update.weight_hash)

    def close(self) -> None:
        self._leave()

    def _join(self, policy: Mapping[str, Any], members: Members, rank: int) -> None:
        self._leave()
        self._generation = members.generation
        keys = [wire_key(policy["trainer"], number) for number in range(int(policy["ranks"]))]
        wires = [Wire.from_json(one) for one in self._context.rendezvous.gather(keys, seconds=self._seconds)]
        channels = [
            Channel(group_name(number, members.generation), wire.address, wire.port, wire.names, wire.dtypes, wire.shapes)
            for number, wire in enumerate(wires)
            if wire.names
        ]
        size, backend = len(members.engines) + 1, wires[0].backend
        update = GroupUpdate(self._engine, channels, rank=rank, size=size, backend=backend, seconds=self._seconds)
        try:
            update.join()
        except EngineError as error:
            update.leave()
            raise TransportError(f"{error}") from error
        self._update = update
        log.info("in weight groups of generation %d with %s", members.generation, ", ".join(members.engines))

    def _leave(self) -> None:
        if self._update is not None:
            with suppress(EngineError):
                self._update.leave()
            self._update = None
