"""Versions put together in memory, a tensor at a time, out of a base and the patches on it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from hpcrl.checkpoint.publish.codec import Bits, Patch, PatchError, apply, bits_of
from hpcrl.checkpoint.publish.layout import Place, TensorSpec, WeightsError, in_file_order, read_header
from hpcrl.checkpoint.publish.versions import Version, read_chain, version_path

_METHOD = "method:"


class Chain:
    """A version and all that it is built on.

    Args:
        folder: of all versions.

    Attributes:
        versions: a base, then every patch up to the version asked for.
        specs: the tensors, by name.

    Raises:
        WeightsError: a part of it is missing, or a file is not whole. Files are not compared with their checksums.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self.versions = read_chain(folder, number)
        # By version in the chain and tensor: where its bytes are, and how they are to be taken.
        self._places: list[dict[str, tuple[Path, Place, str]]] = [self._find(version) for version in self.versions]
        specs = in_file_order(place.spec for _, place, _ in self._places[0].values())
        self.specs: dict[str, TensorSpec] = {spec.name: spec for spec in specs}
        if self.specs.keys() != self.versions[-1].tensors.keys():
            lacking = sorted(self.specs.keys() ^ self.versions[-1].tensors.keys())
            raise WeightsError(
                f"version {self.versions[0].version} in {folder} does not hold the tensors of version {number}: {lacking[0]}"
            )

    def walk(self, name: str) -> Iterator[tuple[Version, Bits, bool]]:
        """A tensor in each version of the chain, and whether it has changed there; the same memory each time.

        Raises:
            WeightsError: a patch is damaged or not of this tensor.
            OSError: a file cannot be read.
        """
        path, place, _ = self._places[0][name]
        bits = bits_of(bytearray(_read(path, place)), place.spec.itemsize)
        yield self.versions[0], bits, True
        for version, places in zip(self.versions[1:], self._places[1:], strict=True):
            if name not in places:
                yield version, bits, False
                continue
            path, place, method = places[name]
            try:
                apply(Patch(method, _read(path, place)), bits)
            except PatchError as error:
                raise WeightsError(f"{path}: the patch of {name} does not fit: {error}") from error
            yield version, bits, True

    def read(self, name: str) -> Bits:
        """A tensor in the last version; errors as :meth:`walk`."""
        *_, (_, bits, _) = self.walk(name)
        return bits

    def _find(self, version: Version) -> dict[str, tuple[Path, Place, str]]:
        folder = version_path(self._folder, version.version)
        found: dict[str, tuple[Path, Place, str]] = {}
        for record in version.files:
            if not record.name.endswith(".safetensors"):
                continue
            path = folder / record.name
            try:
                places, metadata = _read_places(path, record.size)
                found |= {name: (path, place, metadata.get(_METHOD + name, "")) for name, place in places.items()}
            except OSError as error:
                raise WeightsError(f"{path} cannot be read: {error}") from error
        return found


def _read_places(path: Path, size: int) -> tuple[dict[str, Place], dict[str, str]]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != size:
            raise WeightsError(f"{path} is damaged: it has {os.fstat(file.fileno()).st_size} bytes, {size} were written")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory, memoryview(memory) as data:
            return read_header(data, str(path))


def _read(path: Path, place: Place) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(place.start)
        data = file.read(place.end - place.start) or b""
        while len(data) < place.end - place.start and (more := file.read(place.end - place.start - len(data))):
            data += more
    if len(data) != place.end - place.start:
        raise WeightsError(f"{path} ends before {place.spec.name} does")
    return data
