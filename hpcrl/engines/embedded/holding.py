"""The weights that an engine holds, and what may be done to them. For the engine's thread, while nothing is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hpcrl.checkpoint.hashing import hash_digests
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.engines.embedded.errors import WeightUpdateError
from hpcrl.engines.embedded.receive import Groups, Update
from hpcrl.engines.embedded.weights import digest_weights, load_in_place


@dataclass(frozen=True)
class WeightReport:
    """Which weights are loaded.

    Attributes:
        path: the last folder that weights came from.
        hash: hash of the tensors in memory; empty once they were released.
        held: samples that a pause held while they were replaced.
    """

    version: str
    path: Path
    hash: str
    held: int = 0


class Holding:
    """A model's weights.

    Args:
        changed: called once new ones are there; returns how many samples a pause held meanwhile.

    Attributes:
        report: which they are.
        blank: they were released, and none were loaded since.
        broken: why nothing may be generated with them; None if they are whole.
        groups: in which peers send weights.
    """

    def __init__(self, module: torch.nn.Module, path: Path, version: str, changed: Callable[[], int]) -> None:
        self._module, self._changed = module, changed
        # Of each tensor in memory; empty where they are a mixture.
        self._digests = digest_weights(module, path)
        self._update: Update | None = None
        self._shapes: dict[torch.nn.Parameter, torch.Size] = {}
        self.blank = False
        self.report = WeightReport(version, path, hash_digests(self._digests))
        self.broken: str | None = None
        self.groups = Groups()

    @property
    def released(self) -> bool:
        """Whether they have no memory."""
        return bool(self._shapes)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(parameter.nbytes for parameter in self._module.parameters())

    def release(self) -> None:
        """Let go of their memory; once more is no error."""
        if not self.released:
            self._shapes = {parameter: parameter.shape for parameter in self._module.parameters()}
            for parameter in self._shapes:
                parameter.data = parameter.data.new_empty(0)
            self.blank, self._update, self._digests = True, None, {}
            self.report = replace(self.report, hash="")

    def resume(self) -> None:
        """Give them memory again, of any content; once more is no error."""
        for parameter, shape in self._shapes.items():
            parameter.data = parameter.data.new_empty(shape)
        self._shapes = {}

    @property
    def is_receiving(self) -> bool:
        """Whether an update by peers has begun and not ended."""
        return self._update is not None

    def load(self, path: Path, version: str | None, expect_hash: str | None) -> None:
        """Load a folder; it takes the place of an update that peers have begun.

        Raises:
            WeightUpdateError: see :func:`load_in_place`.
        """
        self._require_memory()
        self._update = None
        self._hold(path, version, load_in_place(self._module, path, expect_hash, self._digests))

    def begin(self) -> None:
        """Begin an update by peers.

        Raises:
            WeightUpdateError: one has begun already.
        """
        if self._update is not None:
            raise WeightUpdateError("an update has begun already; end it, or load a whole version", touched=False)
        self._require_memory()
        self._update = Update(self._module)

    def receive(
        self,
        group: str,
        names: Sequence[str],
        dtypes: Sequence[torch.dtype],
        shapes: Sequence[tuple[int, ...]],
        version: str | None,
    ) -> None:
        """Take tensors that rank 0 of a group sends.

        Raises:
            WeightUpdateError: see :meth:`Update.receive`; or none has begun, or there is no such group.
        """
        update = self._begun()
        try:
            update.receive(self.groups.get(group), names, dtypes, shapes)
        except TransportError as error:
            raise WeightUpdateError(str(error), touched=update.touched) from error
        finally:
            self._note(update, version)

    def take(self, tensors: Sequence[tuple[str, torch.Tensor]], version: str | None) -> None:
        """Take tensors of this node's memory.

        Raises:
            WeightUpdateError: see :meth:`Update.take`; or none has begun.
        """
        update = self._begun()
        try:
            update.take(tensors)
        finally:
            self._note(update, version)

    def end(self, expect_hash: str | None) -> None:
        """End the update.

        Raises:
            WeightUpdateError: see :meth:`Update.end`; or none has begun.
        """
        update, self._update = self._begun(), None
        digests = update.end(expect_hash)
        if update.touched:
            self._hold(self.report.path, update.version, digests)

    def spoil(self, why: str) -> None:
        """The weights are a mixture."""
        self.broken, self._update, self._digests = why, None, {}

    def _note(self, update: Update, version: str | None) -> None:
        if update.touched:
            self._digests = {}
        update.version = version or update.version

    def _begun(self) -> Update:
        if self._update is None:
            raise WeightUpdateError("weights are taken only between begin_weight_update and end_weight_update", touched=False)
        return self._update

    def _require_memory(self) -> None:
        if self.released:
            raise WeightUpdateError("the weights' memory was released; resume it first; nothing was changed", touched=False)

    def _hold(self, path: Path, version: str | None, digests: dict[str, str]) -> None:
        self.broken, self.blank, self._digests = None, False, digests
        version = self.report.version if version is None else version
        self.report = WeightReport(version, path, hash_digests(digests), self._changed())
