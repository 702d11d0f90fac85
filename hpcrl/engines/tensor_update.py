"""Weights out of this process's memory into an engine on the same node: SGLang's pickled handles, made without SGLang."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import multiprocessing as torch_multiprocessing

from hpcrl.engines.client import EngineClient, WeightUpdate
from hpcrl.engines.update_session import call, sent_update

_ALIGNMENT = 64
# It has no types.
_sharing: Any = torch_multiprocessing


def update_from_tensors(
    engine: EngineClient, tensors: Mapping[str, torch.Tensor], version: int, *, expect_hash: str | None = None, seconds: float
) -> WeightUpdate:
    """Have an engine of this node copy tensors; with tensor parallelism each of its processes takes its part. Pause it first.

    Tensors of a CPU are copied once, into shared memory that ends with the call; those of a GPU are read where they are.

    Args:
        tensors: by the names of a Hugging Face folder, all on one device.
        expect_hash: the embedded engine compares it with what it got.

    Raises:
        EngineError: as :func:`~hpcrl.engines.update_session.sent_update`.
    """
    shared = _in_shared_memory(tensors)
    body: dict[str, Any] = {
        "serialized_named_tensors": [_payload(shared)] * engine.capabilities.ranks,
        "flush_cache": False,
        "weight_version": str(version),
    }
    # The handles hold good as long as these tensors live, which is until the answer is there.
    return sent_update(
        engine,
        version,
        lambda: call(engine, "/update_weights_from_tensor", body, seconds),
        expect_hash=expect_hash,
        seconds=seconds,
    )


def _in_shared_memory(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Views of one piece, so that one handle serves all; those on a GPU as they are."""
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return [(name, tensor.detach()) for name, tensor in tensors.items()]
    sizes = {name: -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for name, tensor in tensors.items()}
    with _by_file_name():
        piece: Any = torch.empty(sum(sizes.values()), dtype=torch.uint8)
        piece.share_memory_()
    views, start = [], 0
    for name, tensor in tensors.items():
        view = piece[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor.detach())
        views.append((name, view))
        start += sizes[name]
    return views


def _payload(tensors: list[tuple[str, torch.Tensor]]) -> str:
    buffer = io.BytesIO()
    with _by_file_name():
        ForkingPickler(buffer).dump(tensors)
    return base64.b64encode(buffer.getvalue()).decode()


@contextmanager
def _by_file_name() -> Iterator[None]:
    """Share memory under a name: the other way hands on open files, which only a process's own children can take."""
    before = _sharing.get_sharing_strategy()
    _sharing.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        _sharing.set_sharing_strategy(before)
