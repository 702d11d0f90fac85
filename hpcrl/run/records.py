"""Done-records: how each process of an attempt ended. They, and no exit code of a launcher, say whether a role ended well."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Literal

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host
from hpcrl.run.listing import Listing


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
    """Reads the records of an attempt; each file once, and the folder only when it has changed."""

    def __init__(self, attempt: Attempt) -> None:
        self._folder = attempt.path / "done"
        self._listing = Listing(self._folder)
        self._seen: frozenset[str] = frozenset()
        self._records: dict[str, DoneRecord] = {}
        self._first_failure: DoneRecord | None = None

    def read(self) -> dict[str, DoneRecord]:
        """Every record so far, by process."""
        names = self._listing.read()
        if names is not self._seen:
            for name in names - self._seen:
                record = DoneRecord(**json.loads((self._folder / name).read_text()))
                self._records[name.removesuffix(".json")] = record
                first = self._first_failure
                if record.status == "failed" and (first is None or record.t < first.t):
                    self._first_failure = record
            self._seen = names
        return self._records

    def first_failure(self) -> DoneRecord | None:
        """The earliest failure: the others usually follow from it."""
        self.read()
        return self._first_failure
