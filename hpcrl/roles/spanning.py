"""An engine whose replica spans nodes: its first part serves, and the others compute for it.

An engine's processes cannot take in one that was started again, so all parts start together, and all start again when one of
them has. Before the engine loads a version, each part has brought it to its own node, under the same path. They agree by the
attempt's rendezvous::

    span/GROUP.REPLICA         by the first: its life, and the lives of the parts that start with it
    span/GROUP.REPLICA.PART    by another: its life, and the first's that it starts with
    bring/GROUP.REPLICA        by the first: what the parts are to bring
    bring/GROUP.REPLICA.PART   by another: that it has, or why not

Imported only in a process that serves.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.node import Loaded, NodeWeights
from hpcrl.run.errors import DeadlineExceeded, RoleLost, host
from hpcrl.run.stop import back_off, wait_for

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

# The files that this reads may lie on a parallel file system.
_LOOK_S = 1.0
_POLL_S = 0.2


class Span:
    """One part's view of its engine's parts.

    Args:
        seconds: for all of them to come [s].
    """

    def __init__(self, context: RoleContext, *, seconds: float) -> None:
        self._context, self._seconds = context, seconds
        identity = context.identity
        self._name, self._part = f"{identity.group}.{identity.replica}", identity.part
        self._others = range(1, identity.parts)
        self._life = uuid.uuid4().hex
        # Of the first and of the others, as they started together.
        self._first = ""
        self._lives: list[str] = []
        self._next_look = 0.0

    def meet(self) -> None:
        """Wait until every part is about to start its engine's processes.

        Raises:
            DeadlineExceeded: not all came.
            Stopped: asked to stop meanwhile.
        """
        context, meeting = self._context, self._meet_first if self._part else self._meet_others
        if not self._part:
            self._publish_first([])
        what = f"the {len(self._others) + 1} parts of {self._name}, which spans nodes, to start together"
        wait_for(what, meeting, seconds=self._seconds, stop=context.stop, pauses=back_off(0.02, _POLL_S))
        if not self._part:
            self._publish_first(self._lives)

    def check(self) -> None:
        """Look now and then whether all parts still are those that started together.

        Raises:
            RoleLost: another was started again, so this one must be too.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        again = None
        if self._part:
            if self._peek_first().get("life") != self._first:
                again = 0
        else:
            now = [self._peek("span", part).get("life") for part in self._others]
            again = next((part for part, life in zip(self._others, now, strict=True) if life != self._lives[part - 1]), None)
        if again is not None:
            name = self._context.identity.name
            raise RoleLost(
                f"{name} on {host()}: its engine spans {len(self._others) + 1} nodes, whose processes start together, and part "
                f"{again} of it was started again",
                read=self._context.attempt.log(name),
                do="see there, and in the logs of the other parts, which was lost first",
            )

    def have_brought(self, version: int | None, hash: str = "") -> None:
        """Have the other parts bring a version to their nodes; None: have them distrust what they hold.

        Raises:
            WeightsError: one of them cannot, or does not within ``limits.call_s``.
            RoleLost, Stopped: as :meth:`check` and the context's waits.
        """
        ask = uuid.uuid4().hex
        self._context.rendezvous.publish(
            f"bring/{self._name}", {"ask": ask, "first": self._life, "version": version, "hash": hash}
        )

        def look() -> bool | None:
            self.check()
            answers = [self._peek("bring", part) for part in self._others]
            for part, answer in zip(self._others, answers, strict=True):
                if answer.get("ask") == ask and answer["error"]:
                    raise WeightsError(f"part {part} of {self._name}: {answer['error']}")
            return all(answer.get("ask") == ask for answer in answers) or None

        limits, what = self._context.recipe.limits, f"the other parts of {self._name} to have version {version} on their nodes"
        try:
            wait_for(what, look, seconds=limits.call_s, stop=self._context.stop, pauses=back_off(0.01, _POLL_S))
        except DeadlineExceeded as late:
            raise WeightsError(str(late)) from late

    def follow(self, node: NodeWeights, watch: Callable[[], None]) -> None:
        """Bring what the first part asks for, until stopped.

        Args:
            watch: called all the time; raises if this part's processes have ended, or as :meth:`check`.
        """
        context, seen = self._context, ""
        context.phase("serve")
        while not context.stop.sleep(_POLL_S):
            watch()
            ask = context.rendezvous.peek(f"bring/{self._name}") or {}
            if ask.get("first") != self._first or ask["ask"] == seen:
                continue
            error = _bring(node, ask)
            seen = ask["ask"]
            context.rendezvous.publish(f"bring/{self._name}.{self._part}", {"ask": seen, "error": error})
            context.journal.write("brought", version=ask["version"], error=error, read_bytes=node.reads.bytes)

    def _meet_others(self) -> bool | None:
        records = [self._peek("span", part) for part in self._others]
        if not all(record.get("joins") == self._life for record in records):
            return None
        self._lives = [record["life"] for record in records]
        return True

    def _meet_first(self) -> bool | None:
        record = self._peek_first()
        if not record:
            return None
        if record["life"] != self._first:
            self._first = record["life"]
            self._context.rendezvous.publish(f"span/{self._name}.{self._part}", {"life": self._life, "joins": self._first})
        return self._life in record["lives"] or None

    def _publish_first(self, lives: list[str]) -> None:
        self._context.rendezvous.publish(f"span/{self._name}", {"life": self._life, "lives": lives})

    def _peek_first(self) -> Mapping[str, Any]:
        return self._context.rendezvous.peek(f"span/{self._name}") or {}

    def _peek(self, folder: str, part: int) -> Mapping[str, Any]:
        return self._context.rendezvous.peek(f"{folder}/{self._name}.{part}") or {}


class SpannedWeights(NodeWeights):
    """The weights of the first part's node, of which the other parts have the same version on theirs. Of no other engine."""

    def __init__(self, span: Span, folder: Path, source: Path, **options: Any) -> None:
        super().__init__(folder, source, **options)
        self._span = span

    @contextmanager
    def bring(self, version: int, expect_hash: str) -> Iterator[Loaded]:
        """As for one node; on all of them when the block begins."""
        with super().bring(version, expect_hash) as brought:
            self._span.have_brought(brought.version, brought.hash)
            yield brought

    def distrust(self) -> None:
        """As for one node, on all of them."""
        super().distrust()
        self._span.have_brought(None)


def _bring(node: NodeWeights, ask: Mapping[str, Any]) -> str:
    """Do as asked; what went wrong."""
    try:
        if ask["version"] is None:
            node.distrust()
        else:
            with node.bring(ask["version"], ask["hash"]):
                pass
    except (WeightsError, DeadlineExceeded) as error:
        return f"{host()}: {error}"
    return ""
