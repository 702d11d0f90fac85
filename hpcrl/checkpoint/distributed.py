"""torch's distributed checkpoint, with and without a process group."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader


def load_tensors(tensors: dict[str, Any], reader: StorageReader, *, world_size: int) -> None:
    """Fill tensors in place, each rank reading its shards. A collective of all ranks."""
    with _alone(world_size):
        load(tensors, storage_reader=reader, no_dist=world_size == 1)


@contextmanager
def _alone(world_size: int) -> Iterator[None]:
    """Without the warning that a single process loads as a single process."""
    with warnings.catch_warnings():
        if world_size == 1:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
