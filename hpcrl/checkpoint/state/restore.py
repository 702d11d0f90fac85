"""The newest save that is whole, back into a trainer's tensors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.checkpoint.cursor import run_of
from hpcrl.checkpoint.reshard.layout import ReshardError
from hpcrl.checkpoint.reshard.restore import restore as read_shards
from hpcrl.checkpoint.state import rng
from hpcrl.checkpoint.state.identity import Identity, check_identity
from hpcrl.checkpoint.state.layout import DAMAGED, SaveName, StateError, look, rng_name
from hpcrl.checkpoint.state.manifest import Manifest, check_files, mark_damaged, read_manifest
from hpcrl.checkpoint.state.ranks import Ranks
from hpcrl.run.disk import PATIENCE_S, FileDamaged
from hpcrl.run.errors import host
from hpcrl.run.failpoints import reach

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a save must fit; given on rank 0.

    Attributes:
        attempt: that is about to go on; a save of a later one is refused. None takes any.
        identity: None takes any.
    """

    attempt: int | None = None
    identity: Identity | None = None


def restore(
    folder: Path, tensors: dict[str, Any], ranks: Ranks, expected: Expected | None = None, *, late_s: float = PATIENCE_S
) -> Manifest | None:
    """Fill tensors in place from the newest save whose files are as they were written, by any number of ranks. A collective.

    A save that is not whole is named, marked, and the one before is used; this rank's random states come back if it has some
    in the save.

    Args:
        late_s: how long a save's files may take to be seen on this node [s].

    Returns:
        The save's manifest, or None if there is no save at all; then nothing changed.

    Raises:
        StateError: there are saves and none is whole, or the newest is not to be used: of another run, a later attempt,
            another model, tokenizer or dataset, a later version of hpcrl; or it lacks one of the tensors.
    """
    saves = look(folder)
    if ranks.rank == 0 and saves.partial:
        log.warning("unfinished saves in %s are ignored: %s", folder, ", ".join(map(str, saves.partial)))
    refused = ""
    while True:
        manifest: Manifest | None = None
        if ranks.rank == 0:
            try:
                manifest = _choose(folder, expected or Expected())
            except StateError as error:
                refused = str(error)
        verdict = ranks.say(-1 if refused else 0 if manifest is None else 1)
        if verdict < 0:
            raise StateError(refused or f"rank 0 of the trainer refused the saves in {folder}; read its log")
        if verdict == 0:
            return None
        name = SaveName(*(ranks.say(getattr(manifest, part, 0)) for part in ("attempt", "step", "number")))
        if _is_whole(folder, name, ranks, late_s):
            return _load(folder, name, tensors, ranks)


def _choose(folder: Path, expected: Expected) -> Manifest | None:
    """The newest save that may be used, by its manifest; damaged ones are marked."""
    run_id = run_of(folder)
    for name in reversed(look(folder).committed):
        try:
            manifest = read_manifest(folder, name, run_id)
        except FileDamaged as error:
            if not _mark(folder, name, str(error)):
                raise StateError(f"{error}; and that cannot be written down in its folder") from error
            continue
        if expected.attempt is not None and name.attempt > expected.attempt:
            raise StateError(
                f"{folder / str(name)} is of attempt {name.attempt}, and this is attempt {expected.attempt}: it comes from the "
                "future; put back the run's folders attempt_N, or take the save out of the run's directory"
            )
        if expected.identity is not None:
            check_identity(folder, manifest.identity, expected.identity)
        return manifest
    if damaged := look(folder).damaged:
        names = ", ".join(map(str, damaged))
        raise StateError(
            f"no save in {folder} is whole: see {DAMAGED} in {names}; put one back from a copy, or begin a new run"
        )
    return None


def _is_whole(folder: Path, name: SaveName, ranks: Ranks, late_s: float) -> bool:
    """Every rank checks its share of the files.

    Raises:
        StateError: a damaged save cannot be marked, so that others would go on from it.
    """
    reach("restore.begin", folder)
    try:
        manifest = read_manifest(folder, name, late_s=late_s)
        wrong = list(check_files(folder, manifest, share=(ranks.rank, ranks.size), late_s=late_s))
    except FileDamaged as error:
        wrong = [str(error)]
    unmarked = bool(wrong) and not _mark(folder, name, "; ".join(wrong))
    damaged, not_marked = ranks.reduce_max(np.array([float(bool(wrong)), float(unmarked)]))
    if not_marked:
        raise StateError(f"{folder / str(name)} is damaged, and that cannot be written down in it; read the trainer's logs")
    if damaged and not wrong:
        log.error("another rank found %s damaged; the one before is used", folder / str(name))
    reach("restore.checked", folder)
    return not damaged


def _mark(folder: Path, name: SaveName, why: str) -> bool:
    log.error("%s: save %s is not used, the one before is: %s", host(), name, why)
    try:
        mark_damaged(folder, name, why)
    except OSError as error:
        log.error("%s cannot be marked as damaged: %s", folder / str(name), error)
        return False
    return True


def _load(folder: Path, name: SaveName, tensors: dict[str, Any], ranks: Ranks) -> Manifest:
    save = folder / str(name)
    try:
        manifest = read_manifest(folder, name)
        read_shards(save, tensors)
        if ranks.rank < len(manifest.rng):
            rng.restore((save / rng_name(ranks.rank)).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, FileDamaged, ReshardError) as error:
        raise StateError(f"the trainer's state in {save} cannot be read: {error}") from error
    return manifest
