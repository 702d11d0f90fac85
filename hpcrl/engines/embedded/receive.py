"""New weights from peers: which groups this engine is in, and an update tensor by tensor, begun and ended by calls.

Between the two the weights are a mixture, so an update that is not ended well leaves an engine that must not generate.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from hpcrl.checkpoint.hashing import digest_tensors, hash_digests
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.group import Backend, Group
from hpcrl.engines.embedded.errors import WeightUpdateError
from hpcrl.engines.embedded.weights import named_weights
from hpcrl.run.failpoints import reach


class Groups:
    """The groups that this engine is in, by name. Safe from any thread."""

    def __init__(self) -> None:
        self._held: dict[str, Group] = {}
        self._lock = threading.Lock()

    def join(self, name: str, address: str, port: int, *, rank: int, size: int, backend: Backend, seconds: float) -> None:
        """Become a member; one of an earlier group of that name no more.

        Raises:
            TransportError: see :class:`Group`.
        """
        self.leave(name)
        group = Group(address, port, rank=rank, size=size, name=name, backend=backend, seconds=seconds)
        with self._lock:
            self._held[name] = group

    def get(self, name: str) -> Group:
        """The group of that name.

        Raises:
            TransportError: there is none.
        """
        with self._lock:
            if name not in self._held:
                raise TransportError(f"this engine is in no weight group {name!r}, only in {sorted(self._held)}")
            return self._held[name]

    def leave(self, name: str) -> bool:
        """Leave a group; returns whether there was one."""
        with self._lock:
            group = self._held.pop(name, None)
        if group is not None:
            group.close()
        return group is not None

    def close(self) -> None:
        """Leave all."""
        for name in list(self._held):
            self.leave(name)


class Update:
    """An update that was begun.

    Attributes:
        touched: some of the weights were overwritten.
        version: what the weights are to be called; None = as before.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._weights = named_weights(module)
        self._tied = set(module.state_dict()) - set(self._weights)
        self._dtypes: dict[str, torch.dtype] = {}
        self.touched = False
        self.version: str | None = None

    def receive(
        self, group: Group, names: Sequence[str], dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Take tensors that rank 0 of the group sends, in this order. Names, shapes and types are checked before the first.

        Raises:
            WeightUpdateError: ``touched`` is False if nothing was changed, True if the weights are now a mixture.
        """
        wanted = list(zip(names, dtypes, shapes, strict=True))
        device = next(iter(self._weights.values())).device
        self._check(wanted)
        try:
            for name, dtype, shape in wanted:
                buffer = torch.empty(shape, dtype=dtype, device=device)
                reach("transport.receive", name)
                group.broadcast(buffer)
                self._hold(name, buffer)
        except TransportError as error:
            raise WeightUpdateError(
                f"{error}; {len(self._dtypes)} of {len(self._weights)} tensors had come; load a whole version",
                touched=self.touched,
            ) from error

    def take(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Copy tensors of this node's memory. Names, shapes and types are checked before the first.

        Raises:
            WeightUpdateError: they do not fit; nothing more was changed.
        """
        self._check([(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors])
        for name, tensor in tensors:
            self._hold(name, tensor)

    def end(self, expect_hash: str | None) -> dict[str, str]:
        """Check that every weight came, or none; returns the digests of what is loaded, as it was published.

        Raises:
            WeightUpdateError: ``touched``: not all came, or they are not those that were expected.
        """
        missing = [name for name in self._weights if name not in self._dtypes]
        if missing and self.touched:
            raise WeightUpdateError(
                f"the update ended with {len(missing)} of {len(self._weights)} tensors missing, such as {missing[0]}; "
                "load a whole version",
                touched=True,
            )
        digests: dict[str, str] = {}
        for name, held in self._weights.items():
            digests |= digest_tensors({name: held.to(self._dtypes.get(name, held.dtype))})
        digest = hash_digests(digests)
        if expect_hash is not None and digest != expect_hash:
            raise WeightUpdateError(
                f"the weights received hash to {digest}, expected {expect_hash}: they are not those that were published; "
                "load a whole version",
                touched=self.touched,
            )
        return digests

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        held = self._weights.get(name)
        # One that is tied to another came with that.
        if held is not None:
            self.touched = True
            with torch.no_grad():
                held.copy_(tensor)
            self._dtypes[name] = tensor.dtype

    def _check(self, wanted: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> None:
        if problems := self._misfits(wanted):
            raise WeightUpdateError(
                f"the weights that were announced do not fit the loaded model: {'; '.join(problems[:5])}", touched=self.touched
            )

    def _misfits(self, wanted: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> list[str]:
        problems = []
        for name, dtype, shape in wanted:
            held = self._weights.get(name)
            if held is None and name not in self._tied:
                problems.append(f"{name} is not in the model")
            elif held is not None and (shape != tuple(held.shape) or not _fits(dtype, held.dtype)):
                problems.append(f"{name} is {shape} {dtype}, the model has {tuple(held.shape)} {held.dtype}")
        return problems


def _fits(sent: torch.dtype, held: torch.dtype) -> bool:
    """Whether nothing is lost."""
    return sent == held or (sent.is_floating_point and torch.promote_types(sent, held) == held)
