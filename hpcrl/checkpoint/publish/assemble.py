"""A version put together in a folder of its own: the base copied, patches applied in place, and what changed checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcrl.checkpoint.hashing import digest_tensor
from hpcrl.checkpoint.publish.codec import Bits, Patch, PatchError, apply
from hpcrl.checkpoint.publish.files import pieces_of, read_patches
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError
from hpcrl.checkpoint.publish.versions import Version, version_path
from hpcrl.run.disk import PATIENCE_S, write_file
from hpcrl.run.failpoints import reach

# What map_models gives.
Tensors = Mapping[str, tuple[TensorSpec, Bits]]


@dataclass
class Reads:
    """What was read from the run's file system [bytes]."""

    bytes: int = 0


def copy_base(source: Path, target: Path, version: Version, reads: Reads) -> None:
    """Copy the files of a base, comparing each with what was written.

    Args:
        source: folder of all versions.
        target: an empty folder.

    Raises:
        WeightsError: a file is not what was written.
        OSError: one cannot be read or written.
    """
    for record in version.files:
        reach("node.base", record.name)
        path = version_path(source, version.version) / record.name
        copied = write_file(target / record.name, pieces_of(path), durable=False)
        if copied != record:
            raise WeightsError(f"{path} is damaged: it is {copied}, {record} was written")
        reads.bytes += record.size


def apply_patches(source: Path, held: Tensors, patches: Sequence[Version], reads: Reads, *, threads: int = 1) -> set[str]:
    """Bring tensors from one version to the last of these, in place; returns the names of those that were changed.

    Args:
        source: folder of all versions.
        held: of the version before; see :func:`~hpcrl.checkpoint.publish.files.map_models`.
        threads: tensors changed at the same time.

    Raises:
        WeightsError: a patch is damaged or not of these tensors; they are then a mixture.
        OSError: a file cannot be read.
    """
    changed = set[str]()

    def change(named: tuple[str, Patch], path: Path) -> str:
        name, patch = named
        reach("node.tensor", name)
        try:
            apply(patch, held[name][1])
        except (PatchError, KeyError) as error:
            raise WeightsError(f"{path}: the patch of {name} does not fit: {error}") from error
        return name

    with ThreadPoolExecutor(threads, thread_name_prefix="node") as pool:
        for version in patches:
            folder = version_path(source, version.version)
            for record in version.files:
                read = read_patches(folder, record, seconds=PATIENCE_S)
                changed.update(pool.map(partial(change, path=folder / record.name), read))
                reads.bytes += record.size
    return changed


def check_tensors(held: Tensors, version: Version, names: Collection[str], where: Path, *, threads: int = 1) -> None:
    """Compare tensors with what was published.

    Args:
        where: names them in errors.
        threads: tensors looked at at the same time.

    Raises:
        WeightsError: one is another.
    """

    def is_wrong(name: str) -> bool:
        return name not in held or _digest(*held[name]) != version.tensors.get(name)

    listed = sorted(names)
    with ThreadPoolExecutor(threads, thread_name_prefix="node") as pool:
        wrong = [name for name, bad in zip(listed, pool.map(is_wrong, listed), strict=True) if bad]
    if wrong:
        raise WeightsError(f"{len(wrong)} tensors in {where} are not those of version {version.version}, such as {wrong[0]}")


def unlike(held: Version, wanted: Version, changed: Iterable[str]) -> list[str]:
    """Tensors that should have changed from one version to the other and did not. Pure."""
    differ = {name for name, digest in wanted.tensors.items() if held.tensors.get(name) != digest}
    return sorted(differ - set(changed))


def _digest(spec: TensorSpec, bits: Bits) -> str:
    return digest_tensor(spec.name, spec.dtype, spec.shape, bits.view("u1").data)
