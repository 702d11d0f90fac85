"""What an ignitor tells a process that it starts: one JSON argument, nothing in files or the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from hpcrl.plan.plan import PlannedProcess
from hpcrl.plan.ways import Way
from hpcrl.roles.context import Identity
from hpcrl.run.directory import Attempt, RunDirectory

QUEUE_GROUP = "queue"


def identity_of(process: PlannedProcess) -> Identity:
    """The identity that a plan gives one of its processes."""
    return Identity(**{field.name: getattr(process, field.name) for field in fields(Identity)})


@dataclass(frozen=True)
class ProcessSpec:
    """One process of the plan.

    Attributes:
        processes: number of processes of every group, the data plane's among them.
        node: name of the process's node.
        across: ``(stream, column)`` that travel between nodes.
        unit: index of the storage unit to write these to.
        incarnation: how often the process was restarted within the attempt.
        ways: by engine process, how it gets policy weights.
    """

    run_directory: str
    attempt: int
    identity: Identity
    processes: Mapping[str, int]
    node: str = ""
    across: Sequence[tuple[str, str]] = ()
    unit: int = 0
    incarnation: int = 0
    ways: Mapping[str, Way] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ProcessSpec:
        """Back from :meth:`to_json`."""
        fields = json.loads(text)
        identity = fields.pop("identity")
        identity["gpus"], identity["ports"] = tuple(identity["gpus"]), tuple(identity["ports"])
        across = tuple((stream, column) for stream, column in fields.pop("across"))
        return cls(identity=Identity(**identity), across=across, **fields)

    def open_attempt(self) -> Attempt:
        """The attempt that the process belongs to."""
        return Attempt(RunDirectory.open(Path(self.run_directory)), self.attempt)
