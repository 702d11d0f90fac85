"""Checksums, with the name of the method before them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

CHUNK = 4 << 20
# A fingerprint of a larger file looks at its beginning, its end and places between only.
WHOLE_BYTES = 64 << 20
_SAMPLES, _SAMPLE_BYTES = 64, 256 << 10


class Digest:
    """A checksum of bytes that come in pieces.

    Args:
        method: ``xxh3_128`` or ``blake2b``; the former where xxhash is installed, unless one is named.

    Raises:
        ValueError: the method is not known or not installed here.
    """

    def __init__(self, method: str | None = None) -> None:
        self._digest, self._method = _start(method)

    def update(self, piece: bytes | memoryview) -> None:
        """The next bytes."""
        self._digest.update(piece)

    def text(self) -> str:
        """``method:hexadecimal`` of all so far."""
        return f"{self._method}:{self._digest.hexdigest()}"


def digest_file(path: Path, method: str | None = None) -> str:
    """:class:`Digest` of a file's bytes, read in pieces.

    Raises:
        OSError: the file cannot be read.
        ValueError: as :class:`Digest`.
    """
    digest = Digest(method)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.text()


def digest_bytes(data: bytes | memoryview, method: str | None = None) -> str:
    """:class:`Digest` of bytes."""
    digest = Digest(method)
    digest.update(data)
    return digest.text()


def fingerprint(path: Path) -> str:
    """Size and checksum of a file, as text; of a large one, the checksum of places in it: seconds instead of minutes.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size <= WHOLE_BYTES:
        return f"{size} bytes, {digest_file(path)}"
    digest = Digest()
    with open(path, "rb", buffering=0) as file:
        for sample in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return f"{size} bytes, sampled {digest.text()}"


def method_of(digest: str) -> str:
    """The method that a checksum was made with."""
    return digest.partition(":")[0]


def _start(method: str | None) -> tuple[Any, str]:
    if method in (None, "xxh3_128"):
        try:
            import xxhash

            return xxhash.xxh3_128(), "xxh3_128"
        except ImportError:
            if method is not None:
                raise ValueError("checksums of the method xxh3_128 need the package xxhash, which is not installed") from None
    if method in (None, "blake2b"):
        return hashlib.blake2b(digest_size=16), "blake2b"
    raise ValueError(f"checksums of the method {method!r} are not known")
