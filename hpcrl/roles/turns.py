"""Taking turns on GPUs that the groups of a ring share: at any time one group has memory there.

A member that asks when it needs the GPUs, and has nothing on them otherwise::

    turns = Turns(context, memory)
    with turns.turn(step=step) as turn:
        …                      # the GPUs are this group's
        turn.news = {…}        # for the group that gets them next

Each process of the group does so by itself; the group has let go once all of its processes have. The ring's fallback has the
GPUs whenever nobody asks: it takes them, looks at :meth:`Turns.is_called` while it works, and hands on when it is. A group
of no ring, or of one without a token, has every turn at once.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcrl.run.errors import DeadlineExceeded, RoleFailed, host
from hpcrl.run.failpoints import reach
from hpcrl.run.stop import back_off, wait_for

if TYPE_CHECKING:
    from hpcrl.dataplane.ledger.turns import Turn as Standing
    from hpcrl.dataplane.seat import Seat
    from hpcrl.engines.device_memory import DeviceMemory, Released
    from hpcrl.recipe import ColocationRing, Recipe
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)

GIB = 1 << 30
# Between two looks at whether the holder takes too long; a grant comes at once.
_LOOK_S = 1.0
# The driver frees the memory of a process that was killed some seconds after its end.
FREE_S = 20.0


def token_ring(recipe: Recipe, group: str) -> ColocationRing | None:
    """The ring with a token that a group is a member of."""
    return next((ring for ring in recipe.rings if ring.fallback and group in ring.members), None)


@dataclass
class Turn:
    """A turn that this process has.

    Attributes:
        epoch: of the token, which rises with every turn of the ring; 0 where there is no token.
        giver: group that had it before; empty if none had.
        found: what was last handed on with the token, or None.
        news: to be handed on with it; None leaves what was.
    """

    epoch: int = 0
    giver: str = ""
    found: dict[str, Any] | None = None
    news: dict[str, Any] | None = None


class Turns:
    """This process's part in its group's ring.

    Args:
        memory: what the process has on its GPUs; may be set later, and None if it has nothing there between turns.

    Attributes:
        active: whether there is a token at all.
    """

    def __init__(self, context: RoleContext, memory: DeviceMemory | None = None) -> None:
        self._context, self.memory = context, memory
        self._ring = token_ring(context.recipe, context.identity.group)
        self._seat: Seat | None = context.queue.seat(self._ring.name) if self._ring is not None else None
        self._turn: Turn | None = None
        self._trace: dict[str, Any] = {}
        self._away = False
        self._taken_at = self._granted_at = 0.0

    @property
    def active(self) -> bool:
        """Whether there is a token at all."""
        return self._ring is not None

    @contextmanager
    def turn(self, step: int | None = None) -> Iterator[Turn]:
        """The GPUs are this group's inside, and handed on afterwards; after an error they are not, as it mostly ends the
        process. A process that goes on all the same still has them at its next turn.

        Raises:
            RoleFailed, Stopped: as :meth:`take` and :meth:`hand_on`.
        """
        turn = self.take(step)
        self.ready()
        yield turn
        self.hand_on(turn.news)

    def take(self, step: int | None = None) -> Turn:
        """Wait until this group has the GPUs, and take the memory on them that was let go of before.

        Raises:
            RoleFailed: another group does not let go in time, or the memory is not free.
            Stopped: the role was asked to stop.
        """
        if self._ring is None:
            return Turn()
        if self._turn is not None:
            return self._turn
        context, ring, began = self._context, self._ring, time.monotonic()
        context.phase("turn", step=step)
        stands = self._wait(ring)
        self._granted_at = time.monotonic()
        self._await_free(ring, "has the token, and cannot use it")
        checked = time.monotonic()
        resumed = self.memory.resume() if self.memory is not None and self._away else None
        self._away, self._taken_at = False, time.monotonic()
        self._turn = Turn(stands.epoch, stands.giver, json.loads(stands.news) if stands.news else None)
        self._trace = {
            "ring": ring.name,
            "epoch": stands.epoch,
            "giver": stands.giver,
            "step": step,
            "waited_s": self._granted_at - began,
            "gave_s": stands.gave_s,
            "freed_bytes": stands.freed,
            "left_bytes": stands.left,
            "check_s": checked - self._granted_at,
            "resume_s": self._taken_at - checked,
            "resumed_bytes": resumed,
        }
        return self._turn

    def ready(self, **more: Any) -> None:
        """Trace the hand-over, which is complete: this process goes to work. Only the first call in a turn counts.

        Args:
            more: further figures of it.
        """
        if self._trace:
            took = time.monotonic() - self._granted_at
            self._context.journal.write("handover", **self._trace, **more, took_s=took, seconds=self._trace["gave_s"] + took)
            self._trace = {}

    def is_called(self, wait_s: float) -> bool:
        """Whether this process is to let go: answered as soon as it is, at the latest after so long.

        Raises:
            Stopped: the role was asked to stop.
        """
        from hpcrl.dataplane.interface import TurnOver

        if self._seat is None or self._turn is None:
            return False
        try:
            return self._seat.is_called(self._turn.epoch, wait_s)
        except TurnOver as over:
            log.warning("%s; letting go", over)
            return True

    def hand_on(self, news: dict[str, Any] | None = None) -> None:
        """Let go of the memory, see that it is free, and hand the token on.

        Args:
            news: for the group that gets it next.

        Raises:
            RoleFailed: the memory is not free; the token is not handed on.
        """
        from hpcrl.dataplane.interface import TurnOver

        if self._ring is None or self._seat is None or self._turn is None:
            return
        ring, turn, began = self._ring, self._turn, time.monotonic()
        reach("ring.release")
        before = self._used()
        released = self.memory.release() if self.memory is not None else None
        self._away = self.memory is not None
        freed, left = self._check(ring, released, before)
        took = time.monotonic() - began
        reach("ring.leave")
        try:
            self._seat.leave(turn.epoch, freed=freed, left=left, took_s=took, news="" if news is None else json.dumps(news))
        except TurnOver as over:
            log.warning("%s: nobody heard of this process for too long, and its work went on while another had the GPUs", over)
            self._context.journal.write("fenced", ring=ring.name, epoch=turn.epoch, error=str(over))
        self._turn, self._trace = None, {}
        self._context.journal.write(
            "let_go",
            ring=ring.name,
            epoch=turn.epoch,
            held_s=began - self._taken_at,
            release_s=took,
            freed_bytes=freed,
            left_bytes=left,
        )

    def _wait(self, ring: ColocationRing) -> Standing:
        from hpcrl.dataplane.interface import TurnOver

        assert self._seat is not None
        limits, deadline = self._context.recipe.limits, time.monotonic() + self._context.recipe.limits.wait_s
        self._seat.ask()
        while True:
            try:
                stands = self._seat.wait(_LOOK_S)
            except TurnOver as over:
                log.warning("%s; asking again", over)
                self._seat.ask()
                continue
            if stands.settled:
                reach("ring.granted")
                return stands
            late = stands.holder == ring.fallback and stands.called_s > ring.let_go_s
            if late or time.monotonic() > deadline:
                raise self._held_up(ring, stands, ring.let_go_s if late else limits.wait_s)

    def _held_up(self, ring: ColocationRing, stands: Standing, seconds: float) -> RoleFailed:
        context = self._context
        holders = [f"{name} on {where}" for name, where in stands.inside.items()]
        asked = f", was asked to let go {stands.called_s:.0f} s ago" if stands.called_s else ""
        read = next(iter(stands.inside), context.identity.name)
        which = "rings." + ring.name + ".let_go_s" if stands.called_s else "limits.wait_s"
        return RoleFailed(
            f"{context.identity.name} on {host()}: the GPUs of ring {ring.name} did not come within {seconds:g} s: "
            f"{stands.holder or 'nobody'} has had them for {stands.held_s:.0f} s (epoch {stands.epoch}){asked}; "
            f"not let go: {', '.join(holders) or 'nobody'}",
            read=context.attempt.log(read),
            do=f"see there what it is at; raise {which} if it only is slow",
        )

    def _check(self, ring: ColocationRing, released: Released | None, before: dict[int, int]) -> tuple[int, int]:
        """Bytes that were let go of, and that are still held; raises if that is too much."""
        if released is not None and released.left > ring.rest_gib * GIB:
            kept = f"it still has {released.left / GIB:.2f} GiB by its own count, and {ring.rest_gib:g} GiB may be"
            raise self._not_free(ring, kept)
        self._await_free(ring, "cannot hand on")
        after = self._used()
        if released is not None:
            return released.freed, released.left
        return max(0, sum(before.values()) - sum(after.values())), sum(after.values())

    def _await_free(self, ring: ColocationRing, what: str) -> None:
        """See that what is taken of each GPU is no more than what all members may keep."""
        allowed = ring.rest_gib * len(ring.members)
        for gpu in self._context.identity.gpus:
            try:
                wait_for(
                    f"the memory of GPU {gpu}",
                    lambda gpu=gpu: True if self._gpu_used(gpu) <= allowed * GIB else None,  # type: ignore[misc]
                    seconds=FREE_S,
                    stop=self._context.stop,
                    pauses=back_off(0.005, 0.25),
                )
            except DeadlineExceeded as late:
                raise self._not_free(
                    ring,
                    f"{what}: of GPU {gpu} {self._gpu_used(gpu) / GIB:.2f} GiB are in use, and {allowed:g} GiB may be "
                    f"({len(ring.members)} members that keep {ring.rest_gib:g} GiB each)",
                ) from late

    def _not_free(self, ring: ColocationRing, what: str) -> RoleFailed:
        name = self._context.identity.name
        return RoleFailed(
            f"{name} on {host()}: ring {ring.name}, {what}",
            read=self._context.attempt.log(name),
            do=f"see with nvidia-smi who has it; raise rings.{ring.name}.rest_gib if members need that much while they wait",
        )

    def _used(self) -> dict[int, int]:
        return {gpu: self._gpu_used(gpu) for gpu in self._context.identity.gpus}

    def _gpu_used(self, gpu: int) -> int:
        from hpcrl.engines.device_memory import gpu_used_bytes

        return gpu_used_bytes(gpu)
