"""Who decodes next: requests that wait, cohorts that run, turn by turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from hpcrl.engines.embedded.decode import Cohort
from hpcrl.engines.embedded.figures import Figures
from hpcrl.engines.embedded.model import LoadedModel
from hpcrl.engines.embedded.sequence import Group, Sequence
from hpcrl.engines.embedded.settings import EngineSettings


class Schedule:
    """The line of waiting samples and the cohorts that run; used by the engine's thread alone.

    Samples that wait at the same time start as one cohort. In a repeatable engine those of a request with a seed start as a
    cohort of their own: floating-point sums depend on the batch, and such a request must give the same tokens whatever else
    runs.
    """

    def __init__(self, model: LoadedModel, settings: EngineSettings, figures: Figures) -> None:
        self._model, self._settings, self._figures = model, settings, figures
        self._groups: list[Group] = []
        self._waiting: deque[tuple[Group, list[Sequence]]] = deque()
        # Came while the engine was paused: outside of the line until it goes on.
        self._outside: deque[tuple[Group, list[Sequence]]] = deque()
        self._cohorts: deque[Cohort] = deque()

    @property
    def running(self) -> bool:
        """Whether samples hold a cache."""
        return bool(self._cohorts)

    @property
    def waiting(self) -> bool:
        """Whether samples wait to be started."""
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """Samples that have not ended."""
        return sum(s.finish_reason is None for group in self._groups for s in group.sequences)

    def add(self, group: Group, *, outside: bool = False) -> None:
        """Put a request in the line, or outside of it until :meth:`let_in`."""
        self._groups.append(group)
        (self._outside if outside else self._waiting).append((group, list(group.sequences)))
        self._figures.requests += len(group.sequences)
        self._figures.prompt_tokens += sum(len(s.prompt) for s in group.sequences)

    def let_in(self) -> None:
        """Put what came meanwhile in the line."""
        self._waiting.extend(self._outside)
        self._outside.clear()

    def abort(self, chosen: Callable[[Sequence], bool], message: str) -> int:
        """End the samples chosen, as they stand, and answer their requests; returns how many."""
        ended = 0
        for group in self._groups:
            for sequence in group.sequences:
                if sequence.finish_reason is None and chosen(sequence):
                    sequence.abort(message)
                    ended += 1
        self._figures.aborted += ended
        self._settle()
        return ended

    def retract(self) -> None:
        """Send every running sample back to the head of the line, its tokens kept and its cache dropped."""
        running = {id(s) for cohort in self._cohorts for s in cohort.rows if s.finish_reason is None}
        self._cohorts.clear()
        again = []
        for group in self._groups:
            back = [s for s in group.sequences if id(s) in running]
            for sequence in back:
                sequence.retractions += 1
            if back:
                again.append((group, back))
                self._figures.retracted += len(back)
        self._waiting.extendleft(reversed(again))

    def step(self, version: str, *, admit: bool) -> None:
        """Start what waits, if there is room, and give the next cohort one chunk."""
        if admit and (cohort := self._next_cohort()) is not None:
            self._cohorts.appendleft(cohort)
            cohort.start(version)
            self._figures.cached_tokens += sum(row.cached_tokens for row in cohort.rows)
        if not self._cohorts:
            return
        cohort = self._cohorts.popleft()
        self._figures.note_tokens(cohort.run(self._settings.chunk_tokens, version))
        self._cohorts.append(cohort)
        self._settle()

    def count(self, *, paused: bool = False) -> None:
        """Bring the gauges up to date."""
        running = sum(row.finish_reason is None for cohort in self._cohorts for row in cohort.rows)
        self._figures.running = 0 if paused else running
        self._figures.waiting = sum(len(sequences) for _, sequences in self._waiting)
        self._figures.paused = running if paused else 0
        self._figures.used_tokens = sum(cohort.cached_positions for cohort in self._cohorts)
        self._figures.cache_bytes = sum(cohort.cache_bytes for cohort in self._cohorts)

    def _next_cohort(self) -> Cohort | None:
        room = self._settings.max_running_rows - sum(len(cohort.rows) for cohort in self._cohorts)
        chosen: list[Sequence] = []
        while self._waiting and room > 0:
            group, sequences = self._waiting[0]
            # A request with a seed starts whole, with nobody else, so that its batches are always the same.
            alone = group.seeded and self._settings.repeatable
            if alone and (chosen or (self._cohorts and len(sequences) > room)):
                break
            self._waiting.popleft()
            if group.started is None:
                group.started = time.monotonic()
                self._figures.queue_seconds += group.started - group.arrived
                self._figures.queue_count += 1
            take = self._settings.max_running_rows if alone else room
            if len(sequences) > take:
                self._waiting.appendleft((group, sequences[take:]))
            chosen += sequences[:take]
            room -= len(sequences[:take])
            if alone:
                break
        return Cohort(self._model, chosen, prefill_tokens=self._settings.prefill_tokens) if chosen else None

    def _settle(self) -> None:
        self._waiting, self._outside = _open(self._waiting), _open(self._outside)
        self._cohorts = deque(cohort for cohort in self._cohorts if not cohort.done)
        for cohort in self._cohorts:
            cohort.drop_ended()
        # Before the answers go out, so that a client that has its answer sees the figures that go with it.
        self.count()
        self._groups = [group for group in self._groups if not group.resolve_if_done()]


def _open(line: deque[tuple[Group, list[Sequence]]]) -> deque[tuple[Group, list[Sequence]]]:
    """What has not ended."""
    left = ((group, [s for s in sequences if s.finish_reason is None]) for group, sequences in line)
    return deque((group, sequences) for group, sequences in left if sequences)
