"""Writes tensors as a Hugging Face folder: beside its place, file by file, each checked, and renamed when all are durable.

::

    .NAME.export/progress.json   files that are whole, so that an export that was cut short goes on behind them
    NAME/hpcrl_export.json       what it was made of, the one hash of all tensors, and every file with its checksum
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from hpcrl.checkpoint.export.source import TensorSource
from hpcrl.checkpoint.hashing import digest_tensor, hash_digests
from hpcrl.checkpoint.publish.files import part_name, write_companions, write_index
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError, make_header
from hpcrl.run.disk import FileDamaged, FileRecord, FileWriter, check_file, explain, make_folder, remove_tree, rename, sync_path
from hpcrl.run.errors import CheckFailed
from hpcrl.run.sealed import read_sealed, write_sealed

ABOUT = "hpcrl_export.json"
# As Hugging Face splits its own.
SHARD_BYTES = 5 << 30
_PROGRESS, _LOCK = "progress.json", ".lock"


class _Shard(msgspec.Struct, frozen=True):
    """A file that is whole, and the digests of its tensors."""

    file: FileRecord
    tensors: dict[str, str]


def export(
    source: TensorSource,
    target: Path,
    *,
    progress: Callable[[int], None] = lambda size: None,
    shard_bytes: int = SHARD_BYTES,
) -> str:
    """Write a folder; returns the hash of its tensors.

    Args:
        target: must not be there, or be empty.
        progress: hears of bytes that are done.

    Raises:
        CheckFailed: the place is taken, its file system too full, or another export to it is at work.
        WeightsError: a tensor is not what it should be.
        DiskError: a file cannot be written; the same export goes on with what is there.
    """
    check_target(target, sum(spec.nbytes for spec in source.specs.values()))
    beside = beside_of(target)
    try:
        make_folder(beside)
        with _alone(beside):
            digests, files = _write(source, beside, progress, shard_bytes)
            found = hash_digests(digests)
            if source.digests and found != hash_digests(source.digests):
                raise WeightsError(f"the tensors in {beside} have hash {found}, {hash_digests(source.digests)} was published")
            about = {"of": source.about, "dtype": source.dtype, "hash": found, "files": msgspec.to_builtins(files)}
            write_sealed(beside / ABOUT, about)
            (beside / _PROGRESS).unlink()
            (beside / _LOCK).unlink(missing_ok=True)
            sync_path(beside)
            rename(beside, target)
    except OSError as error:
        what = f"the weights cannot be exported to {target}; what is done stays in {beside}, and the same command goes on there"
        raise explain("hpcrl ckpt export", what, error, beside) from error
    return found


def beside_of(target: Path) -> Path:
    """Where a folder is written before it is whole."""
    return target.with_name(f".{target.name}.export")


def check_target(target: Path, size: int) -> None:
    """Whether a folder of so many bytes can come to be there.

    Raises:
        CheckFailed: it cannot.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckFailed([f"{target} is there already; choose another folder, or remove it"])
    if not target.parent.is_dir():
        raise CheckFailed([f"there is no folder {target.parent} to make {target.name} in"])
    beside = beside_of(target)
    done = sum(path.stat().st_size for path in beside.glob("*")) if beside.is_dir() else 0
    free = shutil.disk_usage(target.parent).free
    if size - done > free:
        raise CheckFailed([f"{target.parent} has {free / 1e6:,.0f} MB free, the export needs {(size - done) / 1e6:,.0f} MB"])


def split(specs: Sequence[TensorSpec], shard_bytes: int) -> list[list[TensorSpec]]:
    """Tensors by the file that they go to, in their order; only a file of one tensor may be larger than that. Pure."""
    shards: list[list[TensorSpec]] = []
    size = shard_bytes
    for spec in specs:
        if size + spec.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(spec)
        size += spec.nbytes
    return shards


def _write(
    source: TensorSource, folder: Path, progress: Callable[[int], None], shard_bytes: int
) -> tuple[dict[str, str], list[FileRecord]]:
    shards = split(list(source.specs.values()), shard_bytes)
    done = _take_up(folder, source)
    digests: dict[str, str] = {}
    files: list[FileRecord] = []
    where: dict[str, str] = {}
    for number, specs in enumerate(shards):
        name = f"model{part_name(number, len(shards))}.safetensors"
        shard = done.get(name)
        if shard is None or shard.tensors.keys() != {spec.name for spec in specs}:
            (folder / name).unlink(missing_ok=True)
            shard = _write_shard(source, folder / name, specs, progress)
            done[name] = shard
            write_sealed(folder / _PROGRESS, {"of": source.about, "shards": msgspec.to_builtins(done)})
        else:
            progress(sum(spec.nbytes for spec in specs))
        digests |= shard.tensors
        files.append(shard.file)
        where |= dict.fromkeys(shard.tensors, name)
    files += write_companions(source.companions, folder, source.dtype, durable=True)
    if len(shards) > 1:
        files.append(write_index(folder, where, sum(spec.nbytes for spec in source.specs.values()), durable=True))
    return digests, [record for record in files if record.name != ABOUT]


def _write_shard(source: TensorSource, path: Path, specs: Sequence[TensorSpec], progress: Callable[[int], None]) -> _Shard:
    digests = {}
    file = FileWriter(path)
    try:
        file.write(make_header(specs, {"format": "pt"}))
        for spec in specs:
            data = source.read(spec.name).view("u1").data
            digests[spec.name] = digest_tensor(spec.name, spec.dtype, spec.shape, data)
            expected = source.digests.get(spec.name)
            if expected not in (None, digests[spec.name]):
                raise WeightsError(f"tensor {spec.name} comes out with digest {digests[spec.name]}, {expected} was published")
            file.write(data)
            progress(spec.nbytes)
    except BaseException:
        file.give_up()
        raise
    return _Shard(file.finish(), digests)


def _take_up(folder: Path, source: TensorSource) -> dict[str, _Shard]:
    """Files that an export of the same has left, and are whole; everything else is removed."""
    found: dict[str, _Shard] = {}
    try:
        record = read_sealed(folder / _PROGRESS)
        if record["of"] == source.about:
            found = msgspec.convert(record["shards"], dict[str, _Shard])
    except (FileDamaged, KeyError, msgspec.ValidationError):
        pass
    for name, shard in list(found.items()):
        try:
            check_file(folder, shard.file)
        except FileDamaged:
            del found[name]
    for path in folder.iterdir():
        if path.name not in (*found, _PROGRESS, _LOCK):
            remove_tree(path)
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise CheckFailed([f"another export is writing {folder}; wait for it"]) from error
    try:
        yield
    finally:
        lock.release()
