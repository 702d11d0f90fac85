"""Done-records: how each process of an attempt ended. They, and no exit code of a launcher, say whether a role ended well."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import host
from hpcrl.run.listing import Listing

# A failure so shortly before another event is taken for its effect: who dies of it may speak before who sees it.
CAUSED_S = 2.0


@dataclass(frozen=True, kw_only=True)
class DoneRecord:
    """How one process ended.

    Attributes:
        process: ``group.rank``.
        status: ``done`` finished its work; ``stopped`` was asked to end and did; ``failed`` could not go on.
        code: exit code, 0 unless failed.
        error: what happened, for a person.
        killed_by: name of the signal that ended it and that nobody of the run had sent; such a process may fare better when
            it is started again, so the run goes on in another attempt.
        t: Unix time [s].
    """

    process: str
    status: Literal["done", "stopped", "failed"]
    code: int = 0
    error: str = ""
    killed_by: str = ""
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

    def read(self) -> dict[str, DoneRecord]:
        """Every record so far, by process."""
        names = self._listing.read()
        if names is not self._seen:
            for name in names - self._seen:
                self._records[name.removesuffix(".json")] = DoneRecord(**json.loads((self._folder / name).read_text()))
            self._seen = names
        return self._records

    def first_failure(self) -> DoneRecord | None:
        """See :func:`first_failure`."""
        return first_failure(self.read().values())


def first_failure(records: Iterable[DoneRecord]) -> DoneRecord | None:
    """The earliest failure, or the death that it is taken for an effect of: the others usually follow from it."""
    failures = sorted((record for record in records if record.status == "failed"), key=lambda record: record.t)
    return next(
        (record for record in failures if record.killed_by and record.t - failures[0].t < CAUSED_S),
        failures[0] if failures else None,
    )
