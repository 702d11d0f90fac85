"""The files of a version, as they are written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hpcrl.checkpoint.publish.codec import Bits, Patch, bits_of
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError, in_file_order, make_header, read_header
from hpcrl.run.digest import digest_bytes
from hpcrl.run.disk import PIECE, FileRecord, read_file, write_file
from hpcrl.run.failpoints import reach

INDEX = "model.safetensors.index.json"
# Weights and what is written anew; everything else of the base model's own files goes along.
_NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pt", ".pth", ".h5", ".msgpack")
_METHOD = "method:"


def write_model(folder: Path, part: str, held: Mapping[str, tuple[TensorSpec, Bits]], *, durable: bool) -> FileRecord:
    """Write a rank's tensors as they are.

    Args:
        part: ``-0000R-of-0000N``; empty for a single rank.

    Raises:
        OSError: it cannot be written, and nothing of it is left.
    """
    specs = in_file_order(spec for spec, _ in held.values())
    pieces: list[bytes | memoryview] = [make_header(specs, {"format": "pt"})]
    pieces += [held[spec.name][1].view(np.uint8).data for spec in specs if spec.nbytes]
    return write_file(folder / f"model{part}.safetensors", pieces, durable=durable)


def write_patches(folder: Path, part: str, patches: Mapping[str, Patch], *, durable: bool) -> FileRecord:
    """Write a rank's patches, those that change nothing by their names alone. Errors as :func:`write_model`."""
    held = {name: patch for name, patch in sorted(patches.items()) if patch.method != "same"}
    specs = [TensorSpec(name, "uint8", (len(patch.data),)) for name, patch in held.items()]
    methods = {_METHOD + name: patch.method for name, patch in sorted(patches.items())}
    pieces = [make_header(specs, methods), *(patch.data for patch in held.values())]
    return write_file(folder / f"patch{part}.safetensors", pieces, durable=durable)


def read_patches(folder: Path, record: FileRecord, *, seconds: float = 0.0) -> Iterator[tuple[str, Patch]]:
    """The patches of a file that change something, by tensor.

    Raises:
        WeightsError: the file is not what was written.
        OSError: it cannot be read.
    """
    path = folder / record.name
    data = memoryview(read_file(path, seconds=seconds))
    if len(data) != record.size or digest_bytes(data) != record.digest:
        raise WeightsError(f"{path} is damaged: {len(data)} bytes of checksum {digest_bytes(data)}, {record} was written")
    places, metadata = read_header(data, str(path))
    for name, place in places.items():
        yield name, Patch(metadata[_METHOD + name], data[place.start : place.end])


def write_index(folder: Path, weight_map: Mapping[str, str], total: int, *, durable: bool) -> FileRecord:
    """Write the index of a model in several files. Errors as :func:`write_model`."""
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return write_file(folder / INDEX, [json.dumps(index, indent=2).encode() + b"\n"], durable=durable)


def write_companions(base: Path, folder: Path, dtype: str, *, durable: bool) -> list[FileRecord]:
    """Write the configuration with the dtype published, and copy the base model's tokenizer and other small files.

    Raises:
        OSError: they cannot be read or written.
        WeightsError: the configuration is damaged.
    """
    try:
        config = json.loads((base / "config.json").read_bytes())
        config.pop("torch_dtype", None)
    except (ValueError, AttributeError) as error:
        raise WeightsError(f"{base / 'config.json'} is damaged: {error}") from error
    text = json.dumps({**config, "dtype": dtype}, indent=2).encode() + b"\n"
    records = [write_file(folder / "config.json", [text], durable=durable)]
    for source in sorted(base.iterdir()):
        # What a version is made of in a folder that was published itself.
        ours = source.name in ("config.json", "version.json") or source.name.endswith(_NOT_COPIED)
        if source.is_file() and not ours:
            records.append(write_file(folder / source.name, pieces_of(source), durable=durable))
    return records


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file's content in pieces.

    Raises:
        OSError: it cannot be read.
    """
    reach("disk.open", path)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece


def map_models(folder: Path) -> dict[str, tuple[TensorSpec, Bits]]:
    """The tensors of a folder by name: their values in the files themselves, which change as these are changed.

    Raises:
        WeightsError: there are none, or a file is not whole.
        OSError: one cannot be opened.
    """
    found: dict[str, tuple[TensorSpec, Bits]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        if not path.stat().st_size:
            raise WeightsError(f"{path} is empty")
        memory = np.memmap(path, dtype=np.uint8, mode="r+")
        places, _ = read_header(memory.data, str(path))
        for name, place in places.items():
            found[name] = (place.spec, bits_of(memory.data[place.start : place.end], place.spec.itemsize))
    if not found:
        raise WeightsError(f"there are no model*.safetensors in {folder}")
    return found


def part_name(rank: int, ranks: int) -> str:
    """The middle of the names of a rank's files."""
    return f"-{rank + 1:05d}-of-{ranks:05d}" if ranks > 1 else ""
