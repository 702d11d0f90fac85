"""The file system under torch's storage writer: every file with its checksum, durable before it counts as written."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

from hpcrl.run import disk
from hpcrl.run.disk import FileRecord, FileWriter
from hpcrl.run.failpoints import reach


class DurableFiles(FileSystem):
    """Hands out files that are made durable.

    Attributes:
        records: of the files written, by name.
    """

    def __init__(self) -> None:
        self.records: dict[str, FileRecord] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        """A new file; it is durable afterwards, or gone where anything fails."""
        assert mode == "wb", mode
        reach("shard.begin", path)
        file = FileWriter(Path(path))
        stream = _Stream(file)
        try:
            yield stream
        except BaseException:
            file.give_up()
            # torch's own writer puts an error of its own in the place of one that it meets.
            if stream.failure is not None:
                raise stream.failure from None
            raise
        reach("shard.written", path)
        self.records[Path(path).name] = file.finish()
        reach("shard.durable", path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Durable too."""
        disk.rename(Path(path), Path(new_path))
        record = self.records.pop(Path(path).name)
        self.records[Path(new_path).name] = FileRecord(Path(new_path).name, record.size, record.digest)


class _Stream(io.RawIOBase):
    def __init__(self, file: FileWriter) -> None:
        self._file = file
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.size

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
