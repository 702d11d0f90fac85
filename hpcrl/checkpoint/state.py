"""The trainer's saves: sharded tensors by torch's distributed checkpoint, and a JSON record beside them.

::

    FOLDER/step-00000012/            appears by one rename, when everything in it is durable
      .metadata, __RANK_N.distcp     tensors, each rank's shards; can be read by another number of ranks
      record.json                    step and the caller's record
      rng-00000.pt                   random state of each rank
    FOLDER/.step-00000012.partial    an unfinished save; never read, removed by the next save
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from hpcrl.checkpoint.distributed import load_tensors, save_tensors
from hpcrl.run.atomic import sync, write_json
from hpcrl.run.errors import HpcrlError


class StateError(HpcrlError):
    """A save cannot be written or read; names its folder."""


def saves(folder: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every whole save, oldest first."""
    found = [path for path in folder.glob("step-*") if (path / "record.json").is_file()]
    return sorted((int(path.name.removeprefix("step-")), path) for path in found)


def save_state(
    folder: Path,
    step: int,
    tensors: dict[str, Any],
    caller: dict[str, Any],
    *,
    rank: int,
    world_size: int,
    barrier: Callable[[], None],
    keep: int,
) -> Path:
    """Write one save and drop all but the newest ``keep``. A collective of all ranks.

    Args:
        tensors: by name; sharded ones as DTensors.
        caller: JSON-like, given back by :func:`load_state`.
        barrier: waits for all ranks.

    Raises:
        StateError: disk full or read-only; earlier saves are untouched.
    """
    target, partial = folder / f"step-{step:08d}", folder / f".step-{step:08d}.partial"
    try:
        if rank == 0:
            for old in folder.glob(".step-*"):
                shutil.rmtree(old)
            partial.mkdir(parents=True)
        barrier()
        writer = FileSystemWriter(str(partial), single_file_per_rank=True, sync_files=True)
        save_tensors(tensors, writer, world_size=world_size)
        with open(partial / f"rng-{rank:05d}.pt", "wb") as file:
            torch.save(torch.get_rng_state(), file)
            file.flush()
            os.fsync(file.fileno())
        barrier()
        if rank == 0:
            write_json(partial / "record.json", {"step": step, "caller": caller})
            if target.exists():
                target.rename(folder / f".step-{step:08d}.replaced")
            partial.rename(target)
            sync(folder)
            for _, old in saves(folder)[:-keep]:
                # Out of sight first, so that a reader never meets half of it.
                gone = old.rename(folder / f".{old.name}.old")
                shutil.rmtree(gone)
            shutil.rmtree(folder / f".step-{step:08d}.replaced", ignore_errors=True)
        barrier()
    except (OSError, CheckpointException) as error:
        raise StateError(f"the trainer's state of step {step} cannot be written to {partial}: {error}") from error
    return target


def load_state(folder: Path, tensors: dict[str, Any], *, rank: int, world_size: int) -> tuple[int, dict[str, Any]] | None:
    """Fill the tensors in place from the newest whole save. A collective of all ranks.

    The random state is restored if this rank had one in the save.

    Returns:
        (step, the caller's record), or None if there is no save.

    Raises:
        StateError: a file is damaged, or the save lacks one of the tensors or has it in another shape.
    """
    found = saves(folder)
    if not found:
        return None
    step, path = found[-1]
    try:
        record = json.loads((path / "record.json").read_text())
        load_tensors(tensors, FileSystemReader(str(path)), world_size=world_size)
        random = path / f"rng-{rank:05d}.pt"
        if random.exists():
            torch.set_rng_state(torch.load(random, weights_only=True))
    except (OSError, ValueError, KeyError, RuntimeError, CheckpointException) as error:
        raise StateError(f"the trainer's state in {path} cannot be read: {error}") from error
    return step, record["caller"]
