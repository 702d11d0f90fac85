"""The trainer's saves of a run, by their manifests and the sizes of their files; nothing else is read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcrl.checkpoint.state.layout import DAMAGED, MANIFEST, METADATA, TRAINED, SaveName, StateError, look, part_name
from hpcrl.checkpoint.state.manifest import Manifest, read_manifest
from hpcrl.run.disk import FileDamaged, FileRecord

# foreign: of another run, or of a later version of hpcrl, so that nothing goes on from it or from what is older.
State = Literal["committed", "damaged", "partial", "foreign"]
_RANK = re.compile(r"(?:__|rng-|part-)(\d+)[_.].*")


@dataclass(frozen=True)
class SaveInfo:
    """A save.

    Attributes:
        problem: why it is not to be used; empty if it is committed or partial.
        manifest: None where there is none, or none that can be read.
        bytes: that lie in its folder.
        t: when it was committed, or last written to; Unix time [s].
    """

    name: SaveName
    state: State
    problem: str = ""
    manifest: Manifest | None = None
    bytes: int = 0
    t: float = 0.0


def list_saves(folder: Path, run_id: str) -> list[SaveInfo]:
    """Every save, oldest first.

    Args:
        folder: ``RUN/state``.
    """
    saves = look(folder)
    names = sorted((*saves.committed, *saves.damaged, *saves.partial))
    found = (_info(folder, name, run_id, set(saves.partial)) for name in names)
    return [info for info in found if info is not None]


def resumes_from(saves: Sequence[SaveInfo], next_attempt: int) -> tuple[SaveInfo | None, str]:
    """The save that the next attempt goes on from, and why there is none; pure, and the same choice as of the trainer.

    Args:
        saves: oldest first.

    Returns:
        None and an empty text where a run begins at step 0.
    """
    for info in reversed(saves):
        if info.state == "foreign":
            return None, info.problem
        if info.state != "committed":
            continue
        if info.name.attempt > next_attempt:
            return None, (
                f"{info.name} comes from the future: it is of attempt {info.name.attempt}, and the next one is {next_attempt}; "
                "put back the run's folders attempt_N, or take the save out of the run's directory"
            )
        return info, ""
    damaged = [str(info.name) for info in saves if info.state == "damaged"]
    return None, f"no save is whole: {', '.join(damaged)} are damaged" if damaged else ""


def writer_of(save: Path, name: str) -> str:
    """Who wrote a file of a save, in words: its rank, and the host where that is known."""
    found = _RANK.fullmatch(name)
    if found is None and name not in (METADATA, TRAINED, MANIFEST):
        return "an unknown rank"
    rank = int(found[1]) if found else 0
    part = _read_json(save / part_name(rank))
    host = part.get("host") if isinstance(part, dict) else None
    return f"rank {rank}" + (f" on {host}" if host else "")


def wrong_sizes(folder: Path, records: Sequence[FileRecord]) -> list[str]:
    """Files that are missing or of another size than was written; a sentence each."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return [
        f"{folder / record.name} {f'has {sizes[record.name]} bytes' if record.name in sizes else 'is missing'}, "
        f"{record.size} were written"
        for record in records
        if sizes.get(record.name) != record.size
    ]


def folder_bytes(folder: Path) -> int:
    """Of all files right in it."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _info(folder: Path, name: SaveName, run_id: str, partial: set[SaveName]) -> SaveInfo | None:
    """None where it has gone meanwhile."""
    path = folder / str(name)
    try:
        size, changed = folder_bytes(path), path.stat().st_mtime
        if name in partial:
            return SaveInfo(name, "partial", bytes=size, t=changed)
        try:
            manifest = read_manifest(folder, name, run_id)
        except StateError as error:
            return SaveInfo(name, "foreign", str(error), bytes=size, t=changed)
        except FileDamaged as error:
            # Gone, or damaged?
            (path / MANIFEST).stat()
            return SaveInfo(name, "damaged", str(error), bytes=size, t=changed)
        problem = _marked(path) or "; ".join(wrong_sizes(path, manifest.files))
        return SaveInfo(name, "damaged" if problem else "committed", problem, manifest, size, manifest.t)
    except FileNotFoundError:
        # Retention was faster.
        return None


def _marked(path: Path) -> str:
    if not (path / DAMAGED).exists():
        return ""
    why = _read_json(path / DAMAGED)
    return f"it was found damaged: {why.get('why', '?') if isinstance(why, dict) else '?'}"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
