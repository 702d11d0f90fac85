"""One tensor as ``torch.save`` wrote it into a part of a file: where its bytes lie, without reading them.

The part is a zip archive whose members are not compressed: ``data.pkl`` says how the tensor lies in its storage, and
``data/KEY`` is that storage. Only those few bytes are read to find the rest.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any, NamedTuple

from hpcrl.checkpoint.reshard.window import Window

# A member's own header before its bytes; https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7.
_HEADER_BYTES = 30


class Stored(NamedTuple):
    """Where a tensor's bytes lie in the window, row-major without gaps."""

    offset: int
    length: int


def locate(window: Window, shape: tuple[int, ...], itemsize: int) -> Stored | None:
    """Find a tensor of that shape; None if it does not lie row-major without gaps.

    The archive's own checksums are not looked at: they are of whole members, and who writes may leave them out.

    Raises:
        ValueError: this is no tensor of that shape as ``torch.save`` writes one.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(window) as archive:
            members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        key, first, size, stride = _Layout(io.BytesIO(_read(window, members["data.pkl"]))).load()
        if "byteorder" in members and _read(window, members["byteorder"]) != b"little":
            return None
        member = members[f"data/{key}"]
        offset = _find(window, member)
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(f"no tensor as torch.save writes one: {error!r}") from error
    if tuple(size) != shape:
        raise ValueError(f"it has shape {tuple(size)}, expected {shape}")
    expected = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    row_major = all(a == b or n == 1 for a, b, n in zip(stride, expected, shape, strict=True))
    if not row_major or first != 0 or member.file_size != math.prod(shape) * itemsize:
        return None
    return Stored(offset, member.file_size)


def _find(window: Window, member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")
    window.seek(member.header_offset)
    header = window.read(_HEADER_BYTES) or b""
    if len(header) != _HEADER_BYTES:
        raise EOFError(f"the header of {member.filename} is cut off")
    name, extra = struct.unpack_from("<HH", header, 26)
    return int(member.header_offset + _HEADER_BYTES + name + extra)


def _read(window: Window, member: zipfile.ZipInfo) -> bytes:
    window.seek(_find(window, member))
    return window.read(member.file_size) or b""


class _Layout(pickle.Unpickler):
    """Reads how a tensor lies in its storage: (key, first element, shape, strides). Builds nothing else, so runs nothing."""

    def persistent_load(self, pid: Any) -> str:
        kind, _, key, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"a reference to {kind!r}")
        return str(key)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")):
            return lambda storage, offset, size, stride, *_: (storage, offset, size, stride)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in ("torch", "torch.storage"):
            # A storage class or a dtype; only its place in the arguments matters.
            return f"{module}.{name}"
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")
