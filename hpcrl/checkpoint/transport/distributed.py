"""Versions broadcast into running engines, each of the trainer's ranks in a group of its own with all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpcrl.checkpoint.publish.layout import TensorSpec, in_file_order
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.interface import Held
from hpcrl.run.failpoints import reach

if TYPE_CHECKING:
    import torch

    from hpcrl.checkpoint.transport.group import Backend, Group

# Gives every rank what each rank says. A collective.
Exchange = Callable[[bytes], list[bytes]]


class Members(msgspec.Struct, frozen=True):
    """Who is in the groups.

    Attributes:
        generation: counts the groups of a run; a member of an earlier one is not of this.
        engines: by name, rising; the first has rank 1 in each group, and so on.
    """

    generation: int = 0
    engines: tuple[str, ...] = ()

    def rank(self, engine: str) -> int | None:
        """Of an engine in the groups; None if it is not in them."""
        return self.engines.index(engine) + 1 if engine in self.engines else None


class Said(msgspec.Struct, frozen=True):
    """What a rank says before a version.

    Attributes:
        engines: that serve now, said by rank 0.
        failed: the groups of the version before are of no more use.
    """

    engines: tuple[str, ...] = ()
    failed: bool = False


def agree(members: Members, said: Sequence[Said]) -> Members:
    """Who is in the groups for the next version: new groups where somebody came, went or failed. Pure."""
    engines = tuple(sorted(said[0].engines))
    if engines == members.engines and not any(one.failed for one in said):
        return members
    return Members(members.generation + 1, engines)


class Wire(msgspec.Struct, frozen=True):
    """Where a rank sends and what, in this order; the same for all versions.

    Attributes:
        port: it listens there once it has something to send.
        names, dtypes, shapes: of its tensors.
    """

    address: str
    port: int
    backend: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], address: str, port: int, backend: str) -> Wire:
        """For a rank that owns these tensors."""
        ordered = in_file_order(specs)
        return cls(
            address,
            port,
            backend,
            tuple(spec.name for spec in ordered),
            tuple(spec.dtype for spec in ordered),
            tuple(spec.shape for spec in ordered),
        )

    def to_json(self) -> dict[str, Any]:
        """For a rendezvous."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_json(cls, value: Any) -> Wire:
        """Back from :meth:`to_json`."""
        return msgspec.convert(value, cls)


def group_name(rank: int, generation: int) -> str:
    """Of the group in which a rank of the trainer sends."""
    return f"weights-{rank}-{generation}"


class DistributedSender:
    """Sends one rank's part.

    Args:
        device: on which tensors are sent; with nccl the rank's GPU.
        seconds: for the engines to come, and for each tensor.

    Attributes:
        members: who gets the next version; without any nothing is sent.
        failed: the newest groups are of no more use.
        on_gpu: it shares the GPU with whatever else this rank does there.
    """

    def __init__(self, wire: Wire, *, rank: int, device: str = "cpu", seconds: float) -> None:
        self._wire, self._rank, self._device, self._seconds = wire, rank, device, seconds
        self.members, self.failed, self.on_gpu = Members(), False, device != "cpu"
        self._group: tuple[int, Group] | None = None

    def send(self, version: Version, held: Held) -> None:
        """See :class:`~hpcrl.checkpoint.transport.interface.Sender`."""
        members = self.members
        if not members.engines or not held:
            return
        try:
            group = self._meet(members)
            for name in self._wire.names:
                reach("transport.tensor", name)
                group.broadcast(self._tensor(held, name))
        except TransportError as error:
            self.failed = True
            self.close()
            raise TransportError(f"version {version.version} to {', '.join(members.engines)}: {error}") from error

    def close(self) -> None:
        """See :class:`~hpcrl.checkpoint.transport.interface.Sender`."""
        if self._group is not None:
            self._group[1].close()
            self._group = None

    def _meet(self, members: Members) -> Group:
        from hpcrl.checkpoint.transport.group import Group

        if self._group is not None and self._group[0] == members.generation:
            return self._group[1]
        self.close()
        self.failed = False
        backend: Backend = "nccl" if self._wire.backend == "nccl" else "gloo"
        group = Group(
            self._wire.address,
            self._wire.port,
            rank=0,
            size=len(members.engines) + 1,
            name=group_name(self._rank, members.generation),
            backend=backend,
            seconds=self._seconds,
        )
        self._group = members.generation, group
        return group

    def _tensor(self, held: Held, name: str) -> torch.Tensor:
        import torch

        spec, bits = held[name]
        # Of signed integers, which torch has of every size; the bytes are the same.
        tensor = torch.from_numpy(bits.view(f"i{spec.itemsize}")).view(getattr(torch, spec.dtype)).reshape(spec.shape)
        return tensor.to(self._device)
