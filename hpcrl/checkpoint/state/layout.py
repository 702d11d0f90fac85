"""Where the trainer's saves lie, and which of them are there.

::

    RUN/state/step-00000012.a2.7/   of step 12, by attempt 2, its 7th save
      .metadata, __R_0.distcp       tensors, each rank's shards, in the format of torch.distributed.checkpoint
      rng-R.pt                      random states of each rank
      part-R.json                   what rank R wrote: its files with sizes and checksums
      trained.npy                   int64 ids of the rows whose training this save is the first to hold
      manifest.json                 written last; a save without one does not exist
      damaged.json                  found not to be whole; such a save counts no longer
    RUN/state/accepted.json         another model, tokenizer or dataset that a person has let the run go on with

Nothing is decided by clocks: a later attempt's save is newer, then the one of the higher step, then of the higher number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpcrl.run.errors import HpcrlError

MANIFEST = "manifest.json"
DAMAGED = "damaged.json"
METADATA = ".metadata"
TRAINED = "trained.npy"
_NAME = re.compile(r"step-(\d{8,})\.a(\d+)\.(\d+)")


class StateError(HpcrlError):
    """A save cannot be written, read or used; names its folder."""


@dataclass(frozen=True, order=True)
class SaveName:
    """Which save; a newer one compares as greater.

    Attributes:
        number: of the save within the attempt, from 1.
    """

    attempt: int
    step: int
    number: int

    def __str__(self) -> str:
        """Name of the save's folder."""
        return f"step-{self.step:08d}.a{self.attempt}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> SaveName | None:
        """Back from the folder's name; None where it is none of a save."""
        found = _NAME.fullmatch(text)
        return cls(int(found[2]), int(found[1]), int(found[3])) if found else None


@dataclass(frozen=True)
class Saves:
    """What a folder of saves holds, each oldest first.

    Attributes:
        committed: they have a manifest and are not known to be damaged.
        damaged: they have been found to be.
        partial: they have no manifest: being written, or left by a process that ended.
    """

    committed: tuple[SaveName, ...] = ()
    damaged: tuple[SaveName, ...] = ()
    partial: tuple[SaveName, ...] = ()


def look(folder: Path) -> Saves:
    """What is there; nothing where the folder is missing."""
    found: dict[str, list[SaveName]] = {"committed": [], "damaged": [], "partial": []}
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    for name in sorted(filter(None, map(SaveName.parse, names))):
        path = folder / str(name)
        kind = "partial" if not (path / MANIFEST).exists() else "damaged" if (path / DAMAGED).exists() else "committed"
        found[kind].append(name)
    return Saves(*(tuple(found[kind]) for kind in ("committed", "damaged", "partial")))


def next_number(folder: Path, attempt: int) -> int:
    """For a new save of an attempt: above every one that it has begun."""
    saves = look(folder)
    every = (*saves.committed, *saves.damaged, *saves.partial)
    return max((name.number for name in every if name.attempt == attempt), default=0) + 1


def rng_name(rank: int) -> str:
    """File of a rank's random states."""
    return f"rng-{rank}.pt"


def part_name(rank: int) -> str:
    """File that says what a rank wrote."""
    return f"part-{rank}.json"
