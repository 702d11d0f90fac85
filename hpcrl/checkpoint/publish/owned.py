"""The tensors that one rank publishes: as they were last, and what has changed since."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from hpcrl.checkpoint.hashing import digest_tensor, dtype_name, tensor_bytes
from hpcrl.checkpoint.publish.codec import Bits, Patch, advance, bits_of
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError
from hpcrl.run.failpoints import reach

if TYPE_CHECKING:
    import torch

# Less than this is done before another thread would have begun [bytes].
_SMALL = 1 << 19


class OwnedTensors:
    """A copy of a rank's tensors on the host.

    Args:
        specs: of the tensors that the rank owns.
        threads: tensors compared at the same time.

    Attributes:
        bits: the values by name, as they were taken last.
        digests: of those.
        patches: from what was taken before to those; empty where everything was taken whole.
    """

    def __init__(self, specs: Iterable[TensorSpec], *, threads: int) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._threads = threads
        self.bits: dict[str, Bits] = {}
        self.digests: dict[str, str] = {}
        self.patches: dict[str, Patch] = {}

    def take(self, tensors: Iterable[tuple[str, torch.Tensor]], *, patching: bool) -> None:
        """Take over the values of now.

        Args:
            tensors: of all ranks, in the same order on each; read to the end even after an error, as fetching one may be a
                collective. At most two more than ``threads`` are held at a time.
            patching: make patches from what was taken before.

        Raises:
            WeightsError: a tensor is missing or not as specified; what was taken before is lost.
        """
        self.patches = {}
        taken, wrong = set[str](), list[str]()
        pending: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="publish") as pool:
            for name, tensor in tensors:
                spec = self.specs.get(name)
                if spec is None or wrong:
                    continue
                if dtype_name(tensor) != spec.dtype or tuple(tensor.shape) != spec.shape:
                    wrong.append(f"{name} is {tuple(tensor.shape)} {dtype_name(tensor)}, expected {spec.shape} {spec.dtype}")
                    continue
                taken.add(name)
                held = tensor.detach().cpu().contiguous()
                if spec.nbytes < _SMALL:
                    self._take_one(spec, held, patching)
                    continue
                pending.append(pool.submit(self._take_one, spec, held, patching))
                while len(pending) > self._threads:
                    pending.popleft().result()
            for future in pending:
                future.result()
        if not wrong and taken != self.specs.keys():
            wrong.append(f"there is no {min(self.specs.keys() - taken)}")
        if wrong:
            raise WeightsError(f"the tensors to publish are not those of the model: {wrong[0]}")

    def whole(self) -> dict[str, tuple[TensorSpec, Bits]]:
        """What was taken last, by name."""
        return {name: (spec, self.bits[name]) for name, spec in self.specs.items()}

    @property
    def patch_bytes(self) -> int:
        """Of all patches together."""
        return sum(len(patch.data) for patch in self.patches.values())

    def _take_one(self, spec: TensorSpec, tensor: torch.Tensor, patching: bool) -> None:
        reach("publish.tensor")
        data = tensor_bytes(tensor)
        new = bits_of(data, spec.itemsize)
        if patching:
            self.patches[spec.name] = advance(self.bits[spec.name], new)
            if self.patches[spec.name].method == "same":
                return
        else:
            old = self.bits.setdefault(spec.name, np.empty_like(new))
            np.copyto(old, new)
        self.digests[spec.name] = digest_tensor(spec.name, spec.dtype, spec.shape, data)
