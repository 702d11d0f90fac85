"""Policy versions on disk, in Hugging Face layout, so that any engine can load them.

::

    FOLDER/v000007/                   appears by one rename, when everything in it is written
      model.safetensors               or model-00001-of-0000N.safetensors with model.safetensors.index.json
      config.json                     the base model's, with the dtype published
      generation_config.json, …       the base model's tokenizer and generation files, hard links where possible
      version.json                    version, hash, dtype; written last
    FOLDER/.v000007.…                 an unfinished or a dropped version; never read
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.run.atomic import sync
from hpcrl.run.errors import HpcrlError

_MARKER = "version.json"
# Weights and what is written anew; everything else of the base model's own files goes along.
_NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pt", ".pth", ".h5", ".msgpack")


class WeightsError(HpcrlError):
    """Weights cannot be published or found; names the folder."""


@dataclass(frozen=True)
class Published:
    """A policy version on disk.

    Attributes:
        hash: of :func:`~hpcrl.checkpoint.hashing.hash_tensors` over the tensors in it.
        dtype: of the floating tensors, such as "bfloat16".
    """

    version: int
    path: Path
    hash: str
    dtype: str


def publish(
    folder: Path,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    base: Path,
    *,
    durable: bool = True,
    shard_bytes: int = 5 << 30,
) -> Published:
    """Write one version; a version of the same number is replaced.

    Args:
        tensors: by Hugging Face name, on the CPU.
        base: model folder that the tensors belong to; gives ``config.json`` and tokenizer files.
        durable: fsync before the rename. Without it a version is whole for readers while the machines live, which is enough
            for one that is only served until the next.
        shard_bytes: the most bytes of one safetensors file.

    Raises:
        WeightsError: disk full or read-only, or the base lacks ``config.json``; nothing of the version is left.
    """
    target, beside = _path(folder, version), folder / f".v{version:06d}.{uuid.uuid4().hex[:8]}"
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values() if tensor.is_floating_point()]
    if not dtypes:
        raise WeightsError(f"version {version} cannot be published to {target}: there are no tensors")
    try:
        config = json.loads((base / "config.json").read_text())
        beside.mkdir(parents=True)
        files = _write_tensors(beside, tensors, shard_bytes)
        _take_along(base, beside)
        config.pop("torch_dtype", None)
        (beside / "config.json").write_text(json.dumps({**config, "dtype": dtypes[0]}, indent=2) + "\n")
        published = Published(version, target, hash_tensors(tensors), dtypes[0])
        marker = {"version": version, "hash": published.hash, "dtype": dtypes[0], "files": files}
        (beside / _MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if durable:
            for path in beside.iterdir():
                sync(path)
            sync(beside)
        if target.exists():
            _discard(target)
        beside.rename(target)
        if durable:
            sync(folder)
    except (OSError, ValueError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise WeightsError(f"version {version} cannot be published to {target}: {error}") from error
    return published


def find(folder: Path, version: int) -> Published:
    """The published version of that number.

    Raises:
        WeightsError: there is none, or its marker cannot be read.
    """
    path = _path(folder, version)
    try:
        marker = json.loads((path / _MARKER).read_text())
        return Published(marker["version"], path, marker["hash"], marker["dtype"])
    except (OSError, ValueError, KeyError) as error:
        raise WeightsError(f"no published version {version} at {path}: {error}") from error


def versions(folder: Path) -> list[int]:
    """Numbers of all published versions, rising."""
    return sorted(int(path.name.removeprefix("v")) for path in folder.glob("v[0-9]*") if (path / _MARKER).is_file())


def to_drop(held: Sequence[int], *, keep_last: int, keep_every: int | None = None, protect: Collection[int] = ()) -> list[int]:
    """Which versions may go, rising: not the newest ``keep_last``, no multiple of ``keep_every``, none that is protected."""
    newest = set(sorted(held)[-keep_last:] if keep_last > 0 else ())
    return [
        version
        for version in sorted(held)
        if version not in newest and version not in protect and not (keep_every and version % keep_every == 0)
    ]


def retain(folder: Path, *, keep_last: int, keep_every: int | None = None, protect: Collection[int] = ()) -> list[int]:
    """Remove the versions that :func:`to_drop` names, and return them. A reader never meets half of one by its name."""
    dropped = to_drop(versions(folder), keep_last=keep_last, keep_every=keep_every, protect=protect)
    for version in dropped:
        _discard(_path(folder, version))
    return dropped


def _path(folder: Path, version: int) -> Path:
    return folder / f"v{version:06d}"


def _discard(path: Path) -> None:
    gone = path.rename(path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}"))
    shutil.rmtree(gone)


def _write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], shard_bytes: int) -> list[str]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = shard_bytes
    for name in sorted(tensors):
        size = tensors[name].nbytes
        if shards[-1] and size > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensors[name].contiguous()
        room -= size
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return ["model.safetensors"]
    names = [f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors" for number in range(len(shards))]
    for file, shard in zip(names, shards, strict=True):
        save_file(shard, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return names


def _take_along(base: Path, folder: Path) -> None:
    for source in base.iterdir():
        if not source.is_file() or source.name in ("config.json", _MARKER) or source.name.endswith(_NOT_COPIED):
            continue
        try:
            # Through a link, as model caches have, to the file itself.
            os.link(source.resolve(), folder / source.name)
        except OSError:
            shutil.copyfile(source, folder / source.name)
