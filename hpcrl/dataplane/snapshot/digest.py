"""Checksums of files, with the name of the method before them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

CHUNK = 4 << 20


def digest_file(path: Path, method: str | None = None) -> str:
    """``method:hexadecimal`` of a file's bytes, read in pieces.

    Args:
        method: ``xxh3_128`` or ``blake2b``; the former where xxhash is installed, unless one is named.

    Raises:
        OSError: the file cannot be read.
        ValueError: the method is not known or not installed here.
    """
    digest, method = _start(method)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return f"{method}:{digest.hexdigest()}"


def digest_bytes(data: bytes, method: str | None = None) -> str:
    """:func:`digest_file` of bytes."""
    digest, method = _start(method)
    digest.update(data)
    return f"{method}:{digest.hexdigest()}"


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
