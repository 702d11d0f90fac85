"""What every way of sending has in common."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from hpcrl.checkpoint.publish.codec import Bits
from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.transport.errors import TransportError

log = logging.getLogger(__name__)

# A rank's tensors of a version by name.
Held = Mapping[str, tuple[TensorSpec, Bits]]


class Sender(Protocol):
    """One rank's part in sending versions in one way."""

    def send(self, version: Version, held: Held) -> None:
        """Give this rank's tensors of a version to whoever is to have them; they must not change meanwhile.

        Raises:
            TransportError: not all have them. Nobody takes what arrived for the version.
        """

    def close(self) -> None:
        """Let go of everything. Safe to call twice."""


class Outbox:
    """Sends versions in the background, one after the other, while the trainer goes on.

    Args:
        senders: all of them get each version, in this order.
    """

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._senders = tuple(senders)
        self._thread: threading.Thread | None = None
        self._failed: list[str] = []

    def post(self, version: Version, held: Held) -> None:
        """Send a version; ``held`` must not change until :meth:`settle` has returned."""
        self.settle()
        self._thread = threading.Thread(target=self._send, args=(version, held), name="weights-outbox", daemon=True)
        self._thread.start()

    def settle(self) -> list[str]:
        """Wait for what is under way, which ends by its own deadlines; returns what failed since the last call."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Wait for what is under way and close the senders."""
        for what in self.settle():
            log.warning("%s", what)
        for sender in self._senders:
            sender.close()

    def _send(self, version: Version, held: Held) -> None:
        for sender in self._senders:
            try:
                sender.send(version, held)
            except TransportError as error:
                self._failed.append(f"version {version.version} was not sent by {type(sender).__name__}: {error}")
