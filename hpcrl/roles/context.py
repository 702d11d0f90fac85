"""What a role gets to work with. The same object in a process of its own, in a thread, or in a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcrl.dataplane.interface import Batch, DataPlane
    from hpcrl.plan.ways import Way
    from hpcrl.recipe import Recipe
    from hpcrl.run.directory import Attempt
    from hpcrl.run.rendezvous import Rendezvous
    from hpcrl.tracking.journal import Journal

T = TypeVar("T")


@dataclass(frozen=True)
class Identity:
    """Which process of the run this is.

    Attributes:
        rank: of this process in its group; of a group that forms no world and whose replicas do not span nodes, its replica
            number.
        world_size: processes of the group.
        gpus: indexes of the GPUs on this node that the process may use.
        ports: TCP ports on this node planned for this process alone.
        address: address of this node that other nodes reach.
        world_address, world_port: where rank 0 of the group's world, or part 0 of the replica, listens for the others.
        part, parts: which process this is of those, one on each of several nodes, that drive the replica's GPUs together.
    """

    group: str
    replica: int
    rank: int
    world_size: int
    cpus: int = 1
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    address: str = "127.0.0.1"
    world_address: str = "127.0.0.1"
    world_port: int = 0
    part: int = 0
    parts: int = 1

    @property
    def name(self) -> str:
        """``group.rank``: the name of the process in logs, records and feedback."""
        return f"{self.group}.{self.rank}"


@dataclass
class RoleContext:
    """One role process's view of the run.

    Attributes:
        stop: set when the role is asked to end early: finish or drop the work in hand, save, return.
        key: the run's secret, asked for by every HTTP service of the run.
        ways: by engine process, how it gets policy weights; see :mod:`hpcrl.plan.ways`. From the disk if it is not in it.
    """

    recipe: Recipe
    identity: Identity
    attempt: Attempt
    queue: DataPlane
    rendezvous: Rendezvous
    journal: Journal
    key: str
    stop: StopFlag = field(default_factory=StopFlag)
    ways: Mapping[str, Way] = field(default_factory=dict)

    def phase(self, name: str, step: int | None = None, **figures: Any) -> None:
        """Say what the working thread is at (start, compile, step, checkpoint, …): the role's heartbeat."""
        self.journal.write("phase", name=name, step=step, **figures)

    def read(
        self, stream: str, columns: Sequence[str], *, max_rows: int, meanwhile: Callable[[], None] = lambda: None
    ) -> Batch:
        """The next rows of a stream, waiting at most ``limits.wait_s``.

        Args:
            meanwhile: called a few times a second until they come.

        Raises:
            EndOfStream: every row has been had.
            Stopped: the role was asked to stop.
            DeadlineExceeded: names the stream and the columns waited for.
        """

        def poll() -> Batch | None:
            meanwhile()
            return self.queue.read(stream, columns, max_rows=max_rows, wait_s=0.25)

        return wait_for(
            f"rows of stream {stream!r} with columns {list(columns)}",
            poll,
            seconds=self.recipe.limits.wait_s,
            stop=self.stop,
        )

    def wait_feedback(self, feedback: str, accept: Callable[[Mapping[str, dict[str, Any]]], T | None], what: str) -> T:
        """Poll a feedback stream until ``accept`` makes something of its newest values by writer.

        Raises:
            Stopped, DeadlineExceeded: as :meth:`read`.
        """
        return wait_for(
            f"{what} on feedback stream {feedback!r}",
            lambda: accept({name: item.value for name, item in self.queue.newest(feedback).items()}),
            seconds=self.recipe.limits.wait_s,
            stop=self.stop,
        )

    def raise_if_stopped(self) -> None:
        """Raise :class:`Stopped` if the role was asked to stop."""
        if self.stop.is_set():
            raise Stopped(f"{self.identity.name} was asked to stop")
