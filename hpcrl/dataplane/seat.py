"""One process's place in a ring: asks for the token, waits for it, hears that it must let go, hands it on."""

from __future__ import annotations

from typing import Protocol

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.turns import AskTurn, AwaitTurn, EndTurn, Turn
from hpcrl.run.errors import host


class AskDesk(Protocol):
    """Carries an operation of this process out; see ``LedgerPlane``."""

    def __call__(self, what: str, kind: type[ops.Op], *, wait_s: float = 0.0, **fields: object) -> ops.Answer:
        """The answer; raises ``TurnOver`` where the turn is over."""


class Seat:
    """See the module.

    Every method raises ``DataPlaneError`` when the data plane cannot be reached.

    Args:
        lease_s: a process that is not heard of for so long counts as gone, whatever memory it may still have [s].
    """

    def __init__(self, ring: str, ask: AskDesk, *, lease_s: float) -> None:
        self.ring, self._ask, self._lease_s = ring, ask, lease_s

    def ask(self) -> None:
        """Ask for the token. Asking twice is no error."""
        self._ask(f"ask for ring {self.ring!r}", AskTurn, ring=self.ring, seconds=self._lease_s, host=host())

    def wait(self, wait_s: float) -> Turn:
        """How it stands: ``settled`` as soon as this process has the token, within so long.

        Raises:
            TurnOver: it does not ask any more, as it was silent for too long.
            Stopped: the process was asked to stop, and does not have it yet.
        """
        answer = self._ask(f"get the token of ring {self.ring!r}", AwaitTurn, wait_s=wait_s, ring=self.ring)
        assert isinstance(answer, Turn)
        return answer

    def is_called(self, epoch: int, wait_s: float) -> bool:
        """Whether this process, which has the token of that epoch, is to let go; answered as soon as it is.

        Raises:
            TurnOver: it should have let go already.
            Stopped: the process was asked to stop.
        """
        what = f"hear whether ring {self.ring!r} is asked for"
        answer = self._ask(what, AwaitTurn, wait_s=wait_s, ring=self.ring, epoch=epoch)
        assert isinstance(answer, Turn)
        return answer.settled

    def leave(self, epoch: int, *, freed: int, left: int, took_s: float, news: str) -> None:
        """This process has let go; see :class:`~hpcrl.dataplane.ledger.EndTurn`.

        Raises:
            TurnOver: its turn was over already.
        """
        self._ask(
            f"hand on ring {self.ring!r}",
            EndTurn,
            ring=self.ring,
            epoch=epoch,
            freed=freed,
            left=left,
            took_s=took_s,
            news=news,
        )
