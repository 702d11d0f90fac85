"""One short fingerprint of all weights, the same for whoever holds them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash

_TIED = ("lm_head.weight", "model.embed_tokens.weight")


def hash_tensors(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> str:
    """XXH3-128, in hexadecimal, over names, dtypes, shapes and bytes, in order of the names.

    A head that is tied to the embedding, or equal to it byte for byte, is left out: a trainer that holds it once and an
    engine that lists it twice get the same hash.

    Args:
        tensors: by Hugging Face name, on any device.
        dtype: what floating tensors are cast to first. An engine that computes in a wider type than the one in which the
            weights were published passes the published one.
    """
    head, embedding = (tensors.get(name) for name in _TIED)
    tied = head is not None and embedding is not None and _same(head, embedding)
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        if name == _TIED[0] and tied:
            continue
        tensor = tensors[name].detach()
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        tensor = tensor.cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)
