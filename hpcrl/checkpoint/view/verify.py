"""Reads saves and versions whole and compares them with what was written: nothing is changed, nothing is marked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.checkpoint.hashing import digest_tensor, hash_digests
from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import MARKER, Version, version_path
from hpcrl.checkpoint.state.layout import MANIFEST
from hpcrl.checkpoint.view.chain import Chain
from hpcrl.checkpoint.view.saves import SaveInfo, writer_of
from hpcrl.checkpoint.view.versions import VersionInfo, part_writer
from hpcrl.run.disk import FileDamaged, FileRecord, check_file

# Hears of bytes that were read.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was written.

    Attributes:
        of: the save's name, or ``version N``.
        file: the damaged file; the folder where it is none in particular.
        by: who wrote it, in words.
    """

    of: str
    file: Path
    by: str
    text: str


def verify_save(folder: Path, info: SaveInfo, progress: Progress = lambda size: None) -> Iterator[Finding]:
    """Every file of a save by size and checksum; a save that is known to be damaged is looked at too.

    One that retention removes meanwhile is left out.

    Args:
        folder: ``RUN/state``.
    """
    found = list(_verify_save(folder, info, progress))
    if (folder / str(info.name) / MANIFEST).exists():
        yield from found


def _verify_save(folder: Path, info: SaveInfo, progress: Progress) -> Iterator[Finding]:
    name, save = str(info.name), folder / str(info.name)
    if info.manifest is None:
        yield Finding(name, save / MANIFEST, writer_of(save, MANIFEST), info.problem)
        return
    wrong = False
    for record, problem in _wrong_files(save, info.manifest.files, progress):
        wrong = True
        yield Finding(name, save / record.name, writer_of(save, record.name), problem)
    if not wrong and info.state != "committed":
        yield Finding(name, save, writer_of(save, MANIFEST), info.problem)


def verify_versions(
    folder: Path, versions: Sequence[VersionInfo], wanted: Collection[int], progress: Progress = lambda size: None
) -> Iterator[Finding]:
    """Every file of these versions by size and checksum, and every tensor, put together out of its chain, by digest and hash.

    Those that retention removes meanwhile are left out.

    Args:
        folder: ``RUN/weights``.
        versions: all that are there, rising.
        wanted: the ones to look at; what they are built on is looked at too.
    """
    for finding in list(_verify_versions(folder, versions, wanted, progress)):
        number = int(finding.of.rpartition(" ")[2])
        if (version_path(folder, number) / MARKER).exists():
            yield finding


def _verify_versions(
    folder: Path, versions: Sequence[VersionInfo], wanted: Collection[int], progress: Progress
) -> Iterator[Finding]:
    records = {info.version: info.record for info in versions if info.record is not None}
    needed = _with_chains(wanted, records)
    broken: dict[int, str] = {}
    for info in versions:
        if info.version not in needed:
            continue
        number, path = info.version, version_path(folder, info.version)
        if info.record is None:
            broken[number] = info.problem
            yield Finding(f"version {number}", path / MARKER, part_writer(MARKER), info.problem)
            continue
        for record, problem in _wrong_files(path, info.record.files, progress):
            broken[number] = problem
            yield Finding(f"version {number}", path / record.name, part_writer(record.name), problem)
    yield from _verify_chains(folder, needed, records, broken)


def _verify_chains(folder: Path, needed: set[int], records: dict[int, Version], broken: dict[int, str]) -> Iterator[Finding]:
    above: set[int] = set()
    for number in sorted(needed - broken.keys()):
        below = next((before for before in _chain(number, records)[1:] if before in broken), None)
        if below is not None:
            text = f"it cannot be put together: it is built on version {below}, which is damaged"
            above.add(number)
            yield Finding(f"version {number}", version_path(folder, number), part_writer(MARKER), text)
    # A chain shows all that it goes through.
    shown: set[int] = set()
    for number in sorted(needed - broken.keys() - above, reverse=True):
        if number not in shown:
            shown.update(_chain(number, records))
            yield from _verify_tensors(folder, number, needed)


def _verify_tensors(folder: Path, number: int, needed: Collection[int]) -> Iterator[Finding]:
    try:
        chain = Chain(folder, number)
    except WeightsError as error:
        yield Finding(f"version {number}", version_path(folder, number), part_writer(MARKER), str(error))
        return
    wrong: dict[int, str] = {}
    for name, spec in chain.specs.items():
        digest = ""
        try:
            for version, bits, changed in chain.walk(name):
                if changed:
                    digest = digest_tensor(name, spec.dtype, spec.shape, bits.view("u1").data)
                if digest != version.tensors[name]:
                    text = f"tensor {name} comes out with digest {digest}, {version.tensors[name]} was published"
                    wrong.setdefault(version.version, text)
        except (WeightsError, OSError) as error:
            wrong.setdefault(number, str(error))
    for version in chain.versions:
        if (found := hash_digests(version.tensors)) != version.hash:
            wrong.setdefault(version.version, f"its tensors have hash {found}, {version.hash} was published")
    for bad, text in sorted(wrong.items()):
        if bad in needed:
            yield Finding(f"version {bad}", version_path(folder, bad), part_writer(MARKER), text)


def _wrong_files(folder: Path, records: Sequence[FileRecord], progress: Progress) -> Iterator[tuple[FileRecord, str]]:
    for record in records:
        try:
            check_file(folder, record)
        except FileDamaged as error:
            yield record, str(error)
        progress(record.size)


def _chain(number: int, records: dict[int, Version]) -> list[int]:
    """A version and those below it, as far as their records can be read."""
    chain = [number]
    while (record := records.get(chain[-1])) is not None and record.previous is not None and record.previous < chain[-1]:
        chain.append(record.previous)
    return chain


def _with_chains(wanted: Collection[int], records: dict[int, Version]) -> set[int]:
    return {below for number in wanted for below in _chain(number, records)}
