"""What a run's main job and the jobs that join it tell each other, in files.

::

    RUN/slurm/join/call.json         the main job calls: it waits for all components before it begins an attempt
    RUN/slurm/join/NAME.json         a component's job answers that call: it is there, on these nodes
    RUN/attempt_N/joined.json        the attempt takes those that answered; each then starts its step for it

An answer names the call, and each wait makes a new call, so an answer that an earlier life left is never taken for one of a job
that is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import Attempt, RunDirectory


@dataclass(frozen=True)
class Call:
    """A main job that waits.

    Attributes:
        id: unique.
        job: the main job.
    """

    id: str
    job: str


@dataclass(frozen=True)
class Ready:
    """A component's job that is there, and is taken by an attempt.

    Attributes:
        call: which it answers.
        job: its own, and how often that was requeued.
    """

    call: str
    job: str
    restarts: int
    nodes: tuple[str, ...]

    def is_life(self, job: str, restarts: int) -> bool:
        """Whether it is this life of this job."""
        return (self.job, self.restarts) == (job, restarts)


def make_call(run: RunDirectory, job: str) -> Call:
    """Call; it takes the place of an earlier one."""
    call = Call(uuid.uuid4().hex, job)
    _folder(run).mkdir(parents=True, exist_ok=True)
    write_json(_folder(run) / "call.json", asdict(call))
    return call


def call_of(run: RunDirectory) -> Call | None:
    """The newest call."""
    value = _read(_folder(run) / "call.json")
    return None if value is None else Call(**value)


def answer(run: RunDirectory, component: str, ready: Ready) -> None:
    """Say that a component's job is there."""
    write_json(_folder(run) / f"{component}.json", asdict(ready))


def answers(run: RunDirectory, call: Call, components: Collection[str]) -> dict[str, Ready]:
    """Who of the components has answered a call."""
    found = {name: _ready(_read(_folder(run) / f"{name}.json")) for name in components}
    return {name: ready for name, ready in found.items() if ready is not None and ready.call == call.id}


def take(attempt: Attempt, joined: Mapping[str, Ready]) -> None:
    """Let an attempt begin with these."""
    write_json(attempt.path / "joined.json", {name: asdict(ready) for name, ready in joined.items()})


def taken(attempt: Attempt) -> dict[str, Ready]:
    """Whom an attempt took; empty before it did."""
    value = _read(attempt.path / "joined.json") or {}
    return {name: ready for name, item in value.items() if (ready := _ready(item)) is not None}


def _folder(run: RunDirectory) -> Path:
    return run.path / "slurm" / "join"


def _ready(value: Any) -> Ready | None:
    return None if value is None else Ready(**{**value, "nodes": tuple(value["nodes"])})


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
