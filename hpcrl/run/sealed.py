"""JSON files that carry their own checksum, written last: what they name exists once they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrl.run.atomic import write_json
from hpcrl.run.digest import digest_bytes, method_of
from hpcrl.run.disk import FileDamaged, read_file


def write_sealed(path: Path, record: dict[str, Any], *, durable: bool = True, written: Callable[[], None] | None = None) -> str:
    """Write a JSON object and its checksum in one step; returns the checksum.

    Args:
        durable: False for a file that need not outlive its machine.
        written: called once it is durable under another name.

    Raises:
        OSError: it cannot be written; an older file is untouched.
    """
    digest = digest_bytes(_canonical(record))
    write_json(path, record | {"digest": digest}, durable=durable, written=written)
    return digest


def read_sealed(path: Path, *, seconds: float = 0.0) -> dict[str, Any]:
    """The object; its checksum stays in it, as ``digest``.

    Args:
        seconds: how long the file may take to be seen.

    Raises:
        FileDamaged: it cannot be read, or is not what was written.
    """
    try:
        record: dict[str, Any] = json.loads(read_file(path, seconds=seconds))
        digest = record["digest"]
        whole = digest_bytes(_canonical(record), method_of(digest)) == digest
    except OSError as error:
        raise FileDamaged(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileDamaged(f"{path} is damaged: {error!r}") from error
    if not whole:
        raise FileDamaged(f"{path} is damaged: it does not have the checksum that it names")
    return record


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in record.items() if name != "digest"}, sort_keys=True).encode()
