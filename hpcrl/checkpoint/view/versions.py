"""The published policy versions of a run, by their records and the sizes of their files; nothing else is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import MARKER, Version, read_version, unfinished, version_path, versions
from hpcrl.checkpoint.view.saves import folder_bytes, wrong_sizes

_PART = re.compile(r"(?:model|patch)-(\d{5,})-of-\d{5,}\.safetensors")


@dataclass(frozen=True)
class VersionInfo:
    """A policy version.

    Attributes:
        state: damaged also where it cannot be put together because of one that it is built on.
        problem: why it is damaged.
        record: None where it cannot be read.
        bytes: that lie in its folder.
        t: when it was published; Unix time [s].
    """

    version: int
    state: Literal["committed", "damaged"]
    problem: str = ""
    record: Version | None = None
    bytes: int = 0
    t: float = 0.0


@dataclass(frozen=True)
class Unfinished:
    """What a publish or a removal that was cut short has left, or what is being written."""

    path: Path
    bytes: int
    t: float


def list_versions(folder: Path) -> list[VersionInfo]:
    """Every published version, rising.

    Args:
        folder: ``RUN/weights``.
    """
    found: dict[int, VersionInfo] = {}
    for number in versions(folder):
        try:
            info = _info(folder, number)
        except FileNotFoundError:
            # Retention was faster.
            continue
        before = None if info.record is None else info.record.previous
        if info.state == "committed" and before is not None:
            info = replace(info, problem=_gap(info, found.get(before)))
            info = replace(info, state="damaged" if info.problem else "committed")
        found[number] = info
    return list(found.values())


def list_unfinished(folder: Path) -> list[Unfinished]:
    """Folders that are no version, by name."""
    found = []
    for path in unfinished(folder):
        try:
            found.append(Unfinished(path, folder_bytes(path), path.stat().st_mtime))
        except FileNotFoundError:
            continue
    return found


def part_writer(name: str) -> str:
    """Who wrote a file of a version, in words; rank 0 writes all that is not of a rank."""
    found = _PART.fullmatch(name)
    return f"rank {int(found[1]) - 1 if found else 0}"


def _info(folder: Path, number: int) -> VersionInfo:
    path = version_path(folder, number)
    size, t = folder_bytes(path), (path / MARKER).stat().st_mtime
    try:
        record = read_version(folder, number)
    except WeightsError as error:
        # Gone, or damaged?
        (path / MARKER).stat()
        return VersionInfo(number, "damaged", str(error), bytes=size, t=t)
    problem = "; ".join(wrong_sizes(path, record.files))
    return VersionInfo(number, "damaged" if problem else "committed", problem, record, size, t)


def _gap(info: VersionInfo, before: VersionInfo | None) -> str:
    assert info.record is not None
    what = f"it is a patch on version {info.record.previous}"
    if before is None:
        return f"{what}, which is not there"
    if before.record is not None and before.record.hash != info.record.previous_hash:
        return f"{what} of hash {info.record.previous_hash}; the one that is there has {before.record.hash}"
    return f"{what}, which is damaged" if before.state == "damaged" else ""
