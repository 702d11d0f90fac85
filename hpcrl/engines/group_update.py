"""Has an engine take weights that senders broadcast: SGLang's calls, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcrl.engines.client import EngineClient, EngineError, EngineRefused, WeightUpdate

_NOT_FOUND = 404


@dataclass(frozen=True)
class Channel:
    """One sender and what it sends, in this order.

    Attributes:
        group: its group's name; the sender is rank 0 in it.
        address, port: where the sender waits for the members.
        dtypes: such as "bfloat16".
    """

    group: str
    address: str
    port: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class GroupUpdate:
    """One engine's place in the senders' groups.

    Args:
        rank: of the engine in each group, from 1.
        size: of each group.
        seconds: for a group to meet.
    """

    def __init__(
        self, engine: EngineClient, channels: Sequence[Channel], *, rank: int, size: int, backend: str, seconds: float
    ) -> None:
        self._engine, self._channels, self._seconds = engine, tuple(channels), seconds
        self._place = {"rank_offset": rank, "world_size": size, "backend": backend, "timeout_s": seconds}
        self._joined: list[str] = []

    def join(self) -> None:
        """Enter every group. The senders must enter theirs at the same time.

        Raises:
            EngineError: a group did not meet.
        """
        for channel in self._channels:
            body = {"master_address": channel.address, "master_port": channel.port, "group_name": channel.group}
            self._call("/init_weights_update_group", {**body, **self._place}, self._seconds)
            self._joined.append(channel.group)

    def update(self, version: int, *, expect_hash: str | None, flush_cache: bool, seconds: float) -> WeightUpdate:
        """Take a version from all senders, who must send it at the same time. The engine should be paused.

        Args:
            expect_hash: the embedded engine compares it with what it got; SGLang ignores it.
            flush_cache: must be False while requests are paused ``in_place``.
            seconds: for each sender's part.

        Raises:
            EngineError: it did not arrive whole, or is not what was sent: the engine must not serve until it has loaded a
                whole version in another way. The groups are of no more use then.
        """
        # SGLang before 0.5.21 has no sessions.
        session = self._try("/begin_weight_update", {}, seconds) is not None
        for channel in self._channels:
            body: dict[str, Any] = {
                "names": channel.names,
                "dtypes": channel.dtypes,
                "shapes": channel.shapes,
                "group_name": channel.group,
                "flush_cache": flush_cache and channel is self._channels[-1],
                "weight_version": str(version),
            }
            answer = self._call("/update_weights_from_distributed", body, seconds)
        if session:
            answer = self._call("/end_weight_update", {"expect_hash": expect_hash} if expect_hash else {}, seconds)
        return WeightUpdate(str(answer.get("message")), answer.get("hash"))

    def leave(self) -> None:
        """Leave the groups, as far as the engine answers."""
        for group in self._joined:
            with suppress(EngineError):
                self._call("/destroy_weights_update_group", {"group_name": group}, self._seconds)
        self._joined = []

    def _try(self, route: str, body: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        try:
            return self._call(route, body, seconds)
        except EngineRefused as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _call(self, route: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        # A little longer than the engine itself waits, so that its own words are heard.
        answer: dict[str, Any] = self._engine.ask("POST", route, body, seconds=seconds + 5.0, repeat=False)
        if not answer.get("success"):
            raise EngineRefused(self._engine.url, route, str(answer.get("message")))
        return answer
