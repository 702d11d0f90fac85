"""The record of a published version, and which versions one is put together from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.run.disk import FileDamaged, FileRecord, sync_path, total_bytes
from hpcrl.run.sealed import read_sealed, write_sealed

MARKER = "version.json"
LAYOUT = 1
_NAME = re.compile(r"v(\d{6,})")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """``version.json``, which has the checksum of itself besides.

    Attributes:
        hash: of all tensors; see :mod:`hpcrl.checkpoint.hashing`.
        dtype: of the floating tensors, such as "bfloat16".
        attempt: of the run, that published it.
        previous: the version that this one is a patch on; None for a base.
        previous_hash: hash of that one, so that another version of its number is not taken for it.
        tensors: digest of each tensor of the whole version.
        files: what the version's own folder holds.
    """

    version: int
    hash: str
    dtype: str
    attempt: int
    previous: int | None
    previous_hash: str
    files: list[FileRecord]
    tensors: dict[str, str]
    layout: int = LAYOUT

    @property
    def kind(self) -> str:
        """``base`` or ``patch``."""
        return "base" if self.previous is None else "patch"

    @property
    def size(self) -> int:
        """Bytes of its files, this record not counted."""
        return total_bytes(self.files)


def version_path(folder: Path, version: int) -> Path:
    """Folder of a version."""
    return folder / f"v{version:06d}"


def versions(folder: Path) -> list[int]:
    """Numbers of all published versions, rising."""
    return sorted(number for number, path in _folders(folder) if (path / MARKER).is_file())


def unfinished(folder: Path) -> list[Path]:
    """What a publish or a removal that was cut short has left."""
    halves = [path for _, path in _folders(folder) if not (path / MARKER).is_file()]
    return sorted([*halves, *folder.glob(".v[0-9]*")])


def write_version(path: Path, version: Version, *, durable: bool) -> None:
    """Write the record into a version's folder, which makes it a version.

    Raises:
        OSError: it cannot be written.
    """
    write_sealed(path / MARKER, msgspec.to_builtins(version), durable=durable)
    if durable:
        sync_path(path.parent)


def read_record(path: Path, *, seconds: float = 0.0) -> Version:
    """The record in a version's folder.

    Args:
        seconds: how long it may take to be seen, where another node has just written it.

    Raises:
        WeightsError: there is none, or it is damaged, or of a layout that this program does not know.
    """
    try:
        version = msgspec.convert(read_sealed(path / MARKER, seconds=seconds), Version)
    except (FileDamaged, msgspec.ValidationError) as error:
        raise WeightsError(f"there is no whole policy version in {path}: {error}") from error
    if version.layout != LAYOUT:
        raise WeightsError(f"{path / MARKER} has layout {version.layout}, this hpcrl knows {LAYOUT}; use the one that wrote it")
    return version


def read_version(folder: Path, version: int, *, seconds: float = 0.0) -> Version:
    """:func:`read_record` of a version by its number, errors too."""
    path = version_path(folder, version)
    found = read_record(path, seconds=seconds)
    if found.version != version:
        raise WeightsError(f"{path / MARKER} is the record of version {found.version}")
    return found


def read_chain(folder: Path, version: int, *, built_on: str | None = None, seconds: float = 0.0) -> list[Version]:
    """The versions that one is put together from: a base, then every patch up to it.

    Args:
        built_on: a hash that is there already: where a patch is on it, what comes before is left out.
        seconds: how long the version may take to be seen.

    Raises:
        WeightsError: one is missing, damaged, or another than was built on.
    """
    chain = [read_version(folder, version, seconds=seconds)]
    while (number := chain[-1].previous) is not None and chain[-1].previous_hash != built_on:
        before = read_version(folder, number)
        if before.hash != chain[-1].previous_hash or number >= chain[-1].version:
            raise WeightsError(
                f"version {chain[-1].version} in {folder} is a patch on version {number} of hash {chain[-1].previous_hash}; "
                f"the one that is there has {before.hash}"
            )
        chain.append(before)
    return chain[::-1]


def with_ancestors(wanted: set[int], previous: Mapping[int, int | None]) -> set[int]:
    """These versions and all that they are put together from, as far as they are there. Pure."""
    kept, open_ = set[int](), set(wanted)
    while open_:
        version = open_.pop()
        kept.add(version)
        before = previous.get(version)
        if before is not None and before not in kept:
            open_.add(before)
    return kept & previous.keys()


def _folders(folder: Path) -> list[tuple[int, Path]]:
    found = [(_NAME.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    return [(int(match[1]), path) for match, path in found if match]
