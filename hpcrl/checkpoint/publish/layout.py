"""Which tensors there are, which rank publishes which, and how they lie in a safetensors file. Pure.

The header of a safetensors file is made and read here because patches are applied in place: that needs the place of each
tensor, which the safetensors library does not tell.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.run.errors import HpcrlError

# torch's names, with those of safetensors and bytes a value.
_DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "uint8": ("U8", 1)}
_TORCH_NAMES = {short: (name, size) for name, (short, size) in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_ALIGN = 8


class WeightsError(HpcrlError):
    """Weights cannot be published, read or put together; names the folder or file."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor by its Hugging Face name.

    Attributes:
        dtype: torch's name of it, such as "bfloat16".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return _DTYPES[self.dtype][1]

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in its file [bytes]."""

    spec: TensorSpec
    start: int
    end: int


def owners(specs: Iterable[TensorSpec], ranks: int) -> dict[str, int]:
    """The rank that publishes each tensor: the largest first, each to the rank with the fewest bytes so far."""
    loads = [0] * ranks
    owner = {}
    for spec in sorted(specs, key=lambda spec: (-spec.nbytes, spec.name)):
        rank = min(range(ranks), key=loads.__getitem__)
        loads[rank] += spec.nbytes
        owner[spec.name] = rank
    return owner


def in_file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """As safetensors lays them: wider types first, so that each tensor is aligned, then by name."""
    return sorted(specs, key=lambda spec: (-spec.itemsize, spec.name))


def make_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """What a safetensors file begins with; the tensors follow in the given order without gaps."""
    fields: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for spec in specs:
        end = start + spec.nbytes
        fields[spec.name] = {"dtype": _DTYPES[spec.dtype][0], "shape": list(spec.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return _LENGTH.pack(len(text)) + text


def read_header(data: bytes | memoryview, who: str) -> tuple[dict[str, Place], dict[str, str]]:
    """Places of the tensors in a file by name, and its metadata.

    Args:
        data: the file; only the header is touched.
        who: names the file in errors.

    Raises:
        WeightsError: it is no safetensors file, or ends before its last tensor does.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        first = _LENGTH.size + length
        fields = json.loads(bytes(data[_LENGTH.size : first]))
        metadata = fields.pop("__metadata__", {})
        places = {}
        for name, field in fields.items():
            start, end = field["data_offsets"]
            spec = TensorSpec(name, _TORCH_NAMES[field["dtype"]][0], tuple(field["shape"]))
            if end - start != spec.nbytes or start < 0 or first + end > len(data):
                raise ValueError(f"{name} lies outside the file")
            places[name] = Place(spec, first + start, first + end)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{who} is no whole safetensors file: {error}") from error
    return places, metadata
