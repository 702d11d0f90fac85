"""The checker: takes the events of a run in order and says what is against the rules.

It holds the rows that live and, of all others, only their ids as intervals, so a run of any length fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.verify.commits import Commits, check_commits
from hpcrl.dataplane.verify.found import Findings
from hpcrl.dataplane.verify.report import Report, report_of
from hpcrl.dataplane.verify.rows import RowRules
from hpcrl.dataplane.verify.stream import Limits, Stream
from hpcrl.dataplane.verify.training import TrainingRules

# What the ledger itself says of a process that may be dead.
_OF_THE_DEAD = ("expired", "given_back")
_NO_LIMITS = Limits()

Handlers = Mapping[str, Callable[[Event, str], None]]


class Checker:
    """Checks the events of a run.

    Args:
        limits: by stream; a stream that is not named has none.
        whole: whether the history is there from the run's start, so that what it does not tell has not happened.
    """

    def __init__(self, limits: Mapping[str, Limits], *, whole: bool = True) -> None:
        self._limits, self._whole = limits, whole
        self._found = Findings()
        self._lives: dict[str, int] = {}
        self._groups: dict[str, str] = {}
        self._streams: dict[str, tuple[Stream, RowRules, Handlers]] = {}
        self._attempts = self._events = 0

    @property
    def missing(self) -> list[str]:
        """What the history lacks; whoever reads it adds to this."""
        return self._found.missing

    def begin(self, attempt: int) -> None:
        """The events of an attempt follow."""
        self._attempts += 1
        found = self._found
        found.number = found.event = None
        for stream, _, _ in self._streams.values():
            stream.begin(attempt)
        found.attempt = attempt

    def see(self, number: int, event: Event) -> None:
        """The next event."""
        self._events += 1
        found = self._found
        found.number, found.event = number, event
        who, life = event.who, event.life
        known = self._lives.get(who)
        if event.kind == "life":
            self._begin_life(event, known)
            return
        # Rows from a snapshot were put by nobody.
        if known != life and who:
            self._wrong_life(event, known)
        entry = self._streams.get(event.stream)
        if entry is None:
            entry = self._stream(event.stream)
        group = self._groups.get(who)
        if group is None:
            group = self._groups[who] = who.rpartition(".")[0]
        entry[2][event.kind](event, group)

    def finish(self, commits: Commits | None = None, *, over: bool = True) -> Report:
        """No more events come.

        Args:
            commits: what the trainer has saved and written down.
            over: whether the run's last attempt has ended; else rows may be on their way.
        """
        self._found.number = self._found.event = self._found.attempt = None
        streams = {name: stream for name, (stream, _, _) in self._streams.items()}
        for stream, rows, _ in self._streams.values():
            rows.finish()
            self._finish(stream, over)
        if commits is not None:
            check_commits(commits, streams, self._found)
        return report_of(streams, self._found, attempts=self._attempts, events=self._events)

    def _begin_life(self, event: Event, known: int | None) -> None:
        if known is not None and event.life <= known:
            self._found.add("lives", f"{event.who} began life {event.life} after life {known}")
        else:
            self._lives[event.who] = event.life

    def _wrong_life(self, event: Event, known: int | None) -> None:
        row = event.blocks[0][0] if event.blocks else None
        if known is None or event.life > known:
            self._found.add("lives", f"{event.who} did this in life {event.life}, which had not begun", row=row)
            self._lives[event.who] = event.life
        elif event.kind not in _OF_THE_DEAD:
            self._found.add("lives", f"{event.who} did this in life {event.life}, after life {known} had begun", row=row)

    def _stream(self, name: str) -> tuple[Stream, RowRules, Handlers]:
        stream = Stream(name, self._limits.get(name, _NO_LIMITS), self._found, whole=self._whole)
        rows = RowRules(stream, self._lives)
        training = TrainingRules(stream, rows)
        entry = self._streams[name] = (
            stream,
            rows,
            {
                "produced": lambda event, _: rows.produced(event),
                "leased": rows.leased,
                "filled": rows.filled,
                "expired": rows.expired,
                "given_back": rows.given_back,
                "trained": training.trained,
                "acknowledged": training.acknowledged,
                "cleared": rows.cleared,
                "dropped": rows.dropped,
            },
        )
        return entry

    def _finish(self, stream: Stream, over: bool) -> None:
        stream.check_cleared()
        if stream.training.life < 0:
            return
        for row, number, attempt in stream.untrained:
            self._found.number, self._found.attempt = number, attempt
            self._found.add("lost", "cleared without having been trained", row=row, stream=stream.name)
        self._found.number = self._found.attempt = None
        if over:
            for prompt, rows in stream.book.incomplete():
                what = f"only {rows} of its {stream.limits.samples} rows were trained, and the others are not there"
                self._found.add("prompts", what, prompt=prompt, stream=stream.name)
