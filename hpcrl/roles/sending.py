"""How one of the trainer's ranks hands policy versions to engines, beside publishing them.

Publishing is what every engine can fall back on, so a way that fails costs time and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcrl.checkpoint.publish.layout import TensorSpec, owners
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.transport.distributed import DistributedSender, Members, Said, Wire, agree
from hpcrl.checkpoint.transport.interface import Held, Outbox, Sender
from hpcrl.checkpoint.transport.memory import MemorySender
from hpcrl.checkpoint.transport.serve import FileServer
from hpcrl.dataplane.shm.folders import kept_folder
from hpcrl.roles.feedback import SERVED

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)

# Within the attempt's folder in a node's memory.
SENT = "sent"
# Under which ranks and the server say where they are.
SERVER_KEY = "weights/server"
# An engine that serves an older one than this many versions ago may be gone.
_BEHIND = 2


def wire_key(trainer: str, rank: int) -> str:
    """Under which a rank of the trainer says what it broadcasts, and where."""
    return f"weights/{trainer}.{rank}"


class Sending:
    """One rank's part.

    Args:
        base: model folder.
        specs: every tensor of the model, the same on all ranks.
        exchange: see :class:`~hpcrl.checkpoint.publish.publisher.Publisher`.

    Raises:
        TransportError: the port planned for serving files is taken.
        DataPlaneError: the node has no room in its memory.
    """

    def __init__(
        self, context: RoleContext, base: Path, specs: Sequence[TensorSpec], exchange: Callable[[bytes], list[bytes]]
    ) -> None:
        self._context, self._exchange = context, exchange
        self._ways = {name: way for name, way in context.ways.items() if way != "disk"}
        self._members, self._distributed = Members(), None
        self._stack = ExitStack()
        identity, call_s, used = context.identity, context.recipe.limits.call_s, set(self._ways.values())
        senders: list[Sender] = []
        try:
            if "memory" in used:
                folder = self._stack.enter_context(kept_folder(context.attempt)) / SENT
                rank, ranks = identity.rank, identity.world_size
                senders.append(MemorySender(folder, base, list(specs), rank=rank, ranks=ranks, seconds=call_s))
            if "tcp" in used and identity.rank == 0:
                address, port = identity.address, identity.ports[1]
                server = FileServer(context.attempt.run.weights, address=address, port=port, key=context.key)
                self._stack.callback(server.close)
                context.rendezvous.publish(SERVER_KEY, {"address": address, "port": port})
            if "distributed" in used:
                self._distributed = self._make_distributed(specs)
                senders.append(self._distributed)
            self._outbox = Outbox(senders)
            self._stack.callback(self._outbox.close)
        except BaseException:
            self._stack.close()
            raise

    def settle(self) -> None:
        """Wait for the version that is being sent; only then may what was sent change. Ends by its own deadlines."""
        for what in self._outbox.settle():
            log.warning("%s; the engines fall back on the published version", what)
            self._context.journal.write("not_sent", error=what)

    def announcement(self, version: Version) -> dict[str, Any]:
        """What engines must know to take a version that is sent. A collective, where ranks have to agree."""
        identity = self._context.identity
        said: dict[str, Any] = {"trainer": identity.group, "ranks": identity.world_size}
        if self._distributed is not None:
            engines = self._following(version) if identity.rank == 0 else ()
            mine = msgspec.msgpack.encode(Said(engines, failed=self._distributed.failed))
            heard = [msgspec.msgpack.decode(one, type=Said) for one in self._exchange(mine)]
            self._members = self._distributed.members = agree(self._members, heard)
            said["members"] = msgspec.to_builtins(self._members)
        return said

    def send(self, version: Version, held: Held) -> None:
        """Send this rank's tensors, after the version was announced."""
        self._outbox.post(version, held)
        if self._distributed is not None and self._distributed.on_gpu:
            # Two groups at work on one GPU may wait for each other for ever.
            self.settle()

    def close(self) -> None:
        """Wait for what is being sent, and let go of everything. Safe to call twice."""
        self._stack.close()

    def _make_distributed(self, specs: Sequence[TensorSpec]) -> DistributedSender:
        context, identity = self._context, self._context.identity
        engines = {name.rpartition(".")[0] for name, way in self._ways.items() if way == "distributed"}
        gpus = bool(identity.gpus) and all(context.recipe.groups[group].resources.gpus for group in engines)
        mine = [spec for spec in specs if owners(specs, identity.world_size)[spec.name] == identity.rank]
        wire = Wire.of(mine, identity.address, identity.ports[0], "nccl" if gpus else "gloo")
        context.rendezvous.publish(wire_key(identity.group, identity.rank), wire.to_json())
        device = f"cuda:{identity.gpus[0]}" if gpus else "cpu"
        return DistributedSender(wire, rank=identity.rank, device=device, seconds=context.recipe.limits.call_s)

    def _following(self, version: Version) -> tuple[str, ...]:
        """The engines to broadcast to: those that have kept up so far."""
        served: Mapping[str, Any] = self._context.queue.newest(SERVED)
        oldest = version.version - _BEHIND
        follow = [name for name, way in self._ways.items() if way == "distributed" and name in served]
        return tuple(sorted(name for name in follow if served[name].value["version"] >= oldest))
