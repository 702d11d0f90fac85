"""Where a run is and what each of its processes is at, for a person and for a script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hpcrl.run.directory import Attempt
from hpcrl.run.records import DoneRecord, DoneRecords
from hpcrl.tracking.figures import Figures, Phase, StepFigures
from hpcrl.tracking.handovers import HandoverSummary
from hpcrl.tracking.journal import RunJournalReader
from hpcrl.tracking.state import Ending, by_rank, judge, planned_steps, processes, trained


@dataclass(frozen=True)
class ProcessState:
    """One process of an attempt.

    Attributes:
        process: ``group.rank``; the bare group while none of its processes is up.
        state: ``waiting`` nothing seen yet; ``running`` started and not ended.
        phase: what it last said that it was at, and the step of that.
        age_s: seconds since the process last said something; None if it never did.
        log: the file to read; None if there is none.
        restarts: how often it was killed and started again in place; ``killed_by`` names the last signal, at Unix time
            ``restarted_t`` [s].
    """

    process: str
    state: Literal["waiting", "running", "done", "stopped", "failed"]
    phase: str | None = None
    step: int | None = None
    age_s: float | None = None
    host: str | None = None
    code: int | None = None
    error: str | None = None
    log: str | None = None
    restarts: int = 0
    killed_by: str | None = None
    restarted_t: float | None = None


# Fields of an overview that are not plain data by themselves.
_NESTED = ("last", "processes", "failure", "handovers")


@dataclass(frozen=True)
class Overview:
    """A run at a moment.

    Attributes:
        total: planned steps.
        last: the last step that counts; ``last_age_s`` seconds since then.
        failure: the first process of the attempt that failed.
        handovers: of rings' tokens.
    """

    name: str
    run_id: str
    path: str
    attempt: int
    state: Ending
    total: int | None
    last: StepFigures | None
    last_age_s: float | None
    processes: tuple[ProcessState, ...]
    failure: ProcessState | None
    handovers: tuple[HandoverSummary, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain data, for ``--json``."""
        last = self.last and {
            "step": self.last.step,
            "attempt": self.last.attempt,
            "t": self.last.t,
            **self.last.values,
            "outcomes": dict(self.last.outcomes),
        }
        return {
            **{name: value for name, value in self.__dict__.items() if name not in _NESTED},
            "last": last,
            "processes": [item.__dict__ for item in self.processes],
            "handovers": [item.__dict__ for item in self.handovers],
            "failure": None if self.failure is None else self.failure.__dict__,
        }


class Watcher:
    """Looks at an attempt again and again, reading only what is new."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._figures = Figures()
        self._reader = RunJournalReader(attempt.run)
        self._records = DoneRecords(attempt)
        self._restarts: dict[str, Mapping[str, Any]] = {}
        self._recipe = json.loads((attempt.run.path / "recipe.json").read_text())
        self._name = json.loads((attempt.run.path / "run.json").read_text())["name"]

    def look(self, now: float) -> Overview:
        """The attempt at this moment (Unix time [s])."""
        for attempt, writer, record in self._reader.read():
            if attempt <= self._attempt.number:
                self._figures.add(attempt, writer, record)
            if attempt == self._attempt.number and record["kind"] == "restart":
                self._restarts[record["process"]] = record
        records = self._records.read()
        names = processes(self._attempt)
        total = planned_steps(self._recipe)
        steps = self._figures.steps()
        failure = self._records.first_failure()
        return Overview(
            name=self._name,
            run_id=self._attempt.run.run_id,
            path=str(self._attempt.run.path),
            attempt=self._attempt.number,
            state=judge(records, set(names), trained(self._figures), total),
            total=total,
            last=steps[-1] if steps else None,
            last_age_s=now - steps[-1].t if steps else None,
            processes=tuple(self._states(names, records, now)),
            failure=None if failure is None else self._state(failure.process, records, now),
            handovers=self._figures.handovers.summaries(),
        )

    def _states(self, names: list[str], records: Mapping[str, DoneRecord], now: float) -> list[ProcessState]:
        up = {name.rpartition(".")[0] for name in names}
        groups = self._recipe.get("groups", {})
        states = [self._state(name, records, now) for name in names]
        states += [ProcessState(group, "waiting") for group in groups if group not in up]
        order = list(groups)
        return sorted(states, key=lambda item: (_place(order, item.process), by_rank(item.process)))

    def _state(self, name: str, records: Mapping[str, DoneRecord], now: float) -> ProcessState:
        record = records.get(name)
        restart = self._restarts.get(name)
        phase: Phase | None = self._figures.phases.get(name)
        if phase is not None and phase.attempt != self._attempt.number:
            phase = None
        # A run in one process has one log for all of its roles.
        log = next((path for path in (self._attempt.log(name), self._attempt.log("in_process")) if path.exists()), None)
        return ProcessState(
            process=name,
            state="running" if record is None else record.status,
            phase=None if phase is None else phase.name,
            step=None if phase is None else phase.step,
            age_s=None if phase is None else max(0.0, now - phase.t),
            host=None if record is None else record.host,
            code=None if record is None else record.code,
            error=(record.error or None) if record is not None else None,
            log=None if log is None else str(log),
            restarts=0 if restart is None else restart["incarnation"],
            killed_by=None if restart is None else restart["signal"],
            restarted_t=None if restart is None else restart["t"],
        )


def _place(order: list[str], process: str) -> int:
    group = process if process in order else process.rpartition(".")[0]
    return order.index(group) if group in order else len(order)
