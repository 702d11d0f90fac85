"""One short fingerprint of all weights, the same for whoever holds them, and for many who hold a part each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import torch

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def digest_tensor(name: str, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> str:
    """XXH3-128, in hexadecimal, over name, dtype, shape and bytes of one tensor.

    A head is digested under the embedding's name, so that one of the same content has the same digest.

    Args:
        dtype: such as "bfloat16".
        data: in row-major order, C-contiguous.
    """
    label = _EMBEDDING if name == _HEAD else name
    digest = xxhash.xxh3_128(f"{label}|{dtype}|{tuple(shape)}|".encode())
    digest.update(data)
    return digest.hexdigest()


def hash_digests(digests: Mapping[str, str]) -> str:
    """XXH3-128, in hexadecimal, over names and digests of all tensors, in order of the names.

    A head that is tied to the embedding, or equal to it byte for byte, is left out: a trainer that holds it once and an
    engine that lists it twice get the same hash.
    """
    digest = xxhash.xxh3_128()
    for name, of_tensor in sorted(digests.items()):
        if name != _HEAD or of_tensor != digests.get(_EMBEDDING):
            digest.update(f"{len(name)}:{name}={of_tensor}\n".encode())
    return digest.hexdigest()


def digest_tensors(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> dict[str, str]:
    """:func:`digest_tensor` of each.

    Args:
        tensors: by Hugging Face name, on any device.
        dtype: what floating tensors are cast to first. An engine that computes in a wider type than the one in which the
            weights were published passes the published one.
    """
    digests = {}
    for name, held in tensors.items():
        tensor = held.detach()
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        tensor = tensor.cpu().contiguous()
        digests[name] = digest_tensor(name, dtype_name(tensor), tensor.shape, tensor_bytes(tensor))
    return digests


def hash_tensors(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> str:
    """:func:`hash_digests` of :func:`digest_tensors`."""
    return hash_digests(digest_tensors(tensors, dtype))


def dtype_name(tensor: torch.Tensor) -> str:
    """Such as "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    import torch

    view: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return view
