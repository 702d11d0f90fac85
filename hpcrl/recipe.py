"""What to run: the declarations that a recipe is made of.

A recipe module defines ``recipe(**typed_params) -> Recipe``. Everything here is a frozen dataclass over the standard
library, so importing a recipe never imports torch: a login node can check, plan and render one.

A role, built-in or a user's own, is a dataclass that derives from :class:`Role`: its fields are its settings, its
:meth:`Role.reads` and :meth:`Role.writes` are its contract with the streams, and :meth:`Role.run` is its loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

DType = Literal["bool", "int8", "int32", "int64", "float32", "str"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One typed column of a stream.

    A scalar column holds one value a row; a ragged one holds a one-dimensional array of any length a row. ``str``
    columns are scalar.

    Attributes:
        finite: of a float column: a NaN or an infinity is refused.
    """

    name: str
    dtype: DType
    ragged: bool = False
    finite: bool = False


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A named table of rows. Several roles may fill different columns of the same row.

    A row becomes visible to a reader when all the columns that it asked for are there.

    Attributes:
        block_rows: the most rows that one ``put`` may hold. A block is written, filled, read and cleared as a whole, so
            every reader must ask for at least this many rows.
        capacity_rows: rows that may live untrained before the stream's producers wait.
        capacity_bytes: of all their columns.
        max_row_bytes: a larger row is refused; a string counts by its characters.
        prompt: int column of the rows' prompt numbers, for the history; empty if there is none.
        version: int column of the policy versions that made a row; where it is ragged, its least and greatest are the span.
        tokens: ragged columns whose lengths add up to a row's length, for the length balance.
        aligned: groups of ragged columns that must be equally long within each row; 0 long is allowed.
    """

    name: str
    columns: tuple[Column, ...]
    block_rows: int = 256
    capacity_rows: int = 65_536
    capacity_bytes: int = 8 << 30
    max_row_bytes: int = 256 << 20
    prompt: str = ""
    version: str = ""
    tokens: tuple[str, ...] = ()
    aligned: tuple[tuple[str, ...], ...] = ()

    def column(self, name: str) -> Column:
        """The column of that name; ``KeyError`` if the stream has none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"stream {self.name!r} has no column {name!r}; it has {[c.name for c in self.columns]}")


@dataclass(frozen=True, kw_only=True)
class FeedbackStream:
    """Keeps only the newest value of each writer (weights, gates); reading one never blocks."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Reads:
    """A role's claim on columns of a row stream. Each row goes to one replica of the reading group.

    Attributes:
        final: this reader clears the rows. Every row stream has exactly one final reader.
        max_rows: the most rows that the role asks for at a time; checked against the stream's ``block_rows``.
    """

    stream: str
    columns: tuple[str, ...]
    final: bool = False
    max_rows: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Writes:
    """A role's promise of columns of a row stream.

    Attributes:
        creates: the role puts new rows. Exactly one group creates the rows of a stream, the others fill columns.
    """

    stream: str
    columns: tuple[str, ...]
    creates: bool = False


@dataclass(frozen=True, kw_only=True)
class Role:
    """Base of every role: settings as fields, the contract with the streams, and the loop."""

    # A service answers others and never reports done by itself: it is stopped when every other role is done.
    service: ClassVar[bool] = False
    # The processes of all replicas form one torch.distributed world (an SPMD trainer); otherwise replicas are apart.
    world: ClassVar[bool] = False
    # One process for each GPU of a replica (SPMD); otherwise one process drives all the GPUs of its replica.
    process_per_gpu: ClassVar[bool] = False
    # Where a replica spans nodes, one process on each drives the GPUs there; :class:`hpcrl.roles.context.Identity` says which
    # part of the replica it is.
    process_per_node: ClassVar[bool] = False
    # Asks for a ring's token by :class:`hpcrl.roles.turns.Turns` and has nothing on the GPU without it.
    takes_turns: ClassVar[bool] = False
    # Lets go whenever another member of the ring asks: may be a ring's fallback.
    gives_way: ClassVar[bool] = False

    def reads(self) -> tuple[Reads, ...]:
        """Columns of row streams that the role consumes."""
        return ()

    def writes(self) -> tuple[Writes, ...]:
        """Columns of row streams that the role produces."""
        return ()

    def listens(self) -> tuple[str, ...]:
        """Feedback streams that the role reads."""
        return ()

    def announces(self) -> tuple[str, ...]:
        """Feedback streams that the role writes."""
        return ()

    def check(self, recipe: Recipe) -> list[str]:
        """Everything wrong with these settings that can be known before the start, a sentence each.

        Runs once on the launching host, before any process is started; may read files and import what it needs.
        """
        return []

    def disk_bytes(self, recipe: Recipe) -> int:
        """The most space that one process of this role takes in the run directory at a time [bytes]."""
        return 0

    def prepare(self, *, gpus: bool) -> None:
        """Import what :meth:`run` imports, so that a process that must start again need not; see ``Limits.spares``.

        Called in a process of its own, without any other call, and before each :meth:`run` in a process, where what it raises
        fails the role. It must start no thread, open no device and connect to nothing: processes are forked from what is there
        when it returns.

        Args:
            gpus: the process will use some.
        """

    def run(self, context: RoleContext) -> None:
        """The role's loop, in its own process. Returning means done; raising means failed."""
        raise TypeError(f"{type(self).__qualname__} must define run(context)")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one replica of a group needs.

    Attributes:
        gpus: GPUs of one replica.
        cpus: CPU cores of one process of the replica; also its thread count.
        host_memory_gib: watermark, the most host memory that a replica uses on a node [GiB]; 0 = not stated.
        gpu_memory_gib: watermark, the most memory that a replica uses on each of its GPUs [GiB]; 0 = not stated.
        across_nodes: one replica may span nodes (a tensor-parallel replica never does unless this asks for it).
    """

    gpus: int = 0
    cpus: int = 1
    host_memory_gib: float = 0.0
    gpu_memory_gib: float = 0.0
    across_nodes: bool = False


@dataclass(frozen=True, kw_only=True)
class RoleGroup:
    """A role with replicas.

    Attributes:
        after: groups that must be up before this one starts its work.
    """

    role: Role
    replicas: int = 1
    resources: Resources = field(default_factory=Resources)
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ColocationRing:
    """Groups that share the same GPUs (or, without GPUs, the same cores).

    Attributes:
        fallback: member that has the GPUs whenever no other asks for them: a token goes round, and who does not have it lets go
            of its memory. Empty: there is no token, and all members have their memory at the same time.
        rest_gib: what a member may keep on each GPU while it does not have the token [GiB]: its CUDA context and what its
            libraries never give back.
        let_go_s: from the moment that the fallback is asked to let go until it has [s].
    """

    name: str
    members: tuple[str, ...]
    fallback: str = ""
    rest_gib: float = 2.0
    let_go_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How much is trained, and how far generation may run ahead of it.

    Attributes:
        steps: training steps; one step consumes one batch of prompts and makes one policy version.
        prompts_per_step: prompts in a batch.
        samples_per_prompt: samples for each prompt (the group of GRPO).
        window: pacing window; 1 is lock-step, 2 generates one batch ahead, None has no window and is held only by
            ``Limits.version_lag``.
    """

    steps: int
    prompts_per_step: int
    samples_per_prompt: int
    window: int | None = 1


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that hold for the whole run; all times in seconds.

    Attributes:
        version_lag: the most policy versions between the one that generated a token and the one that trains on it.
        start_s: a role must be up within this time.
        wait_s: any wait for another role's data or weights.
        call_s: one call of the data plane or of an engine's control route.
        drain_s: from a request to stop until everything is saved and ended.
        snapshot_s: between two snapshots of the queue, 0 = never: with a node at most so much of it is lost.
        restarts: how often in an attempt a process that was killed is started again in place, if its group forms no world;
            0 = never.
        spares: keep a process on each slot that has imported what roles import, for a start again within a second or two; it
            takes the memory of the libraries once more, 0.3 to 0.9 GiB.
    """

    version_lag: int = 4
    start_s: float = 600.0
    wait_s: float = 1800.0
    call_s: float = 60.0
    drain_s: float = 120.0
    snapshot_s: float = 60.0
    restarts: int = 3
    spares: bool = True


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to run, wholly resolved: groups of roles, the streams between them, the schedule and the limits."""

    name: str
    groups: Mapping[str, RoleGroup]
    streams: tuple[Stream, ...]
    schedule: Schedule
    feedback: tuple[FeedbackStream, ...] = ()
    rings: tuple[ColocationRing, ...] = ()
    limits: Limits = field(default_factory=Limits)
    seed: int = 0

    def stream(self, name: str) -> Stream:
        """The row stream of that name; ``KeyError`` if the recipe has none."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise KeyError(f"recipe {self.name!r} has no stream {name!r}; it has {[s.name for s in self.streams]}")
