"""Done-records: how each process of an attempt ended. They, and no exit code of a launcher, say whether a role ended well."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Literal

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host


@dataclass(frozen=True, kw_only=True)
class DoneRecord:
    """How one process ended.

    Attributes:
        process: ``group.rank``.
        status: ``done`` finished its work; ``stopped`` was asked to end and did; ``failed`` could not go on.
        code: exit code, 0 unless failed.
        error: what happened, for a person.
        t: Unix time [s].
    """

    process: str
    status: Literal["done", "stopped", "failed"]
    code: int = 0
    error: str = ""
    host: str = field(default_factory=host)
    t: float = field(default_factory=time.time)


def write_done(attempt: Attempt, record: DoneRecord) -> None:
    """Leave a record; a process leaves exactly one."""
    write_json(attempt.path / "done" / f"{record.process}.json", asdict(record))


class DoneRecords:
    """Reads the records of an attempt; each file once."""

    def __init__(self, attempt: Attempt) -> None:
        self._folder = attempt.path / "done"
        self._records: dict[str, DoneRecord] = {}

    def read(self) -> dict[str, DoneRecord]:
        """Every record so far, by process."""
        for path in self._folder.glob("[!.]*.json"):
            if path.stem not in self._records:
                self._records[path.stem] = DoneRecord(**json.loads(path.read_text()))
        return self._records

    def first_failure(self) -> DoneRecord | None:
        """The earliest failure: the others usually follow from it."""
        failed = [record for record in self.read().values() if record.status == "failed"]
        return min(failed, key=lambda record: record.t, default=None)
