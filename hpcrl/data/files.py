"""Files of records: where they lie, and what is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrl.run.errors import CheckFailed

_LINES = (".jsonl", ".json", ".ndjson")
_PARQUET = ".parquet"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
# Rows of a Parquet file in memory at a time.
_ROWS = 4096


def data_files(name: str) -> list[Path]:
    """The files that a name stands for: a file, all in a folder, or all of a Hugging Face dataset (cached, if it is).

    Raises:
        CheckFailed: there is none.
    """
    path = Path(name).expanduser()
    if not path.exists() and _HUB_NAME.fullmatch(name):
        path = _from_hub(name)
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in (*_LINES, _PARQUET) and file.is_file())
    # Beside its records a dataset may bring descriptions of itself.
    found = [file for file in found if file.suffix != ".json"] or found
    if not found:
        raise CheckFailed([f"dataset {name!r}: {path} has no file of {', '.join((*_LINES, _PARQUET))}"])
    return found


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, the record) of each row or line; a line that is no JSON is given as the ``ValueError`` that it caused.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read.
        CheckFailed: it is a Parquet file, and damaged, or pyarrow is not installed.
    """
    if path.suffix == _PARQUET:
        yield from _rows(path)
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                yield where, ValueError(f"is not JSON: {error.msg} at character {error.pos + 1}")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise CheckFailed(
            [f"{path} is a Parquet file, which takes the package pyarrow: pip install pyarrow, or make it JSON lines"]
        ) from error
    try:
        with ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_ROWS):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", record
    except pyarrow.ArrowException as error:
        raise CheckFailed([f"{path} cannot be read as Parquet: {error}"]) from error


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    wanted = [f"*{ending}" for ending in (*_LINES, _PARQUET)]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=wanted, etag_timeout=10))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckFailed(
            [
                f"dataset {name!r} is no file or folder here ({Path(name).absolute()}), not in the local Hugging Face cache, "
                f"and its download failed ({reason}); give a file, or download it where there is a network"
            ]
        ) from error
