"""Where exported tensors come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hpcrl.checkpoint.publish.codec import Bits
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError
from hpcrl.checkpoint.publish.versions import version_path
from hpcrl.checkpoint.view.chain import Chain
from hpcrl.run.disk import FileDamaged, check_file


class TensorSource(Protocol):
    """Tensors under Hugging Face names, one by one.

    Attributes:
        specs: by name, in the order in which they are best read.
        digests: what each must be, where that is known.
        companions: folder with the configuration and the tokenizer that belong to them.
        dtype: such as "bfloat16".
        about: JSON-like; exports of equal ones are equal.
    """

    @property
    def specs(self) -> Mapping[str, TensorSpec]: ...  # noqa: D102
    @property
    def digests(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def companions(self) -> Path: ...  # noqa: D102
    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def about(self) -> dict[str, Any]: ...  # noqa: D102

    def read(self, name: str) -> Bits:
        """The values of a tensor, in row-major order.

        Raises:
            HpcrlError: it is damaged.
            OSError: it cannot be read.
        """


class PublishedVersion:
    """A policy version, put together out of its chain.

    Args:
        folder: ``RUN/weights``.

    Raises:
        WeightsError: a part of the chain is missing, or a file that goes along with the tensors is damaged.
    """

    def __init__(self, folder: Path, number: int, run_id: str) -> None:
        self._chain = Chain(folder, number)
        base, last = self._chain.versions[0], self._chain.versions[-1]
        self.specs, self.digests, self.dtype = self._chain.specs, last.tensors, last.dtype
        self.companions = version_path(folder, base.version)
        self.about: dict[str, Any] = {"run_id": run_id, "version": number, "attempt": last.attempt, "hash": last.hash}
        for record in base.files:
            if not record.name.endswith(".safetensors"):
                try:
                    check_file(self.companions, record)
                except FileDamaged as error:
                    raise WeightsError(str(error)) from error

    def read(self, name: str) -> Bits:
        """See :meth:`TensorSource.read`."""
        return self._chain.read(name)
