"""Has an engine take weights that senders broadcast: SGLang's calls, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcrl.engines.client import EngineClient, EngineError, WeightUpdate
from hpcrl.engines.update_session import call, sent_update


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
            call(self._engine, "/init_weights_update_group", {**body, **self._place}, self._seconds)
            self._joined.append(channel.group)

    def update(self, version: int, *, expect_hash: str | None, seconds: float) -> WeightUpdate:
        """Take a version from all senders, who must send it at the same time. The engine should be paused.

        Args:
            seconds: for each sender's part.

        Raises:
            EngineError: as :func:`~hpcrl.engines.update_session.sent_update`. The groups are of no more use then.
        """

        def take() -> dict[str, Any]:
            answer: dict[str, Any] = {}
            for channel in self._channels:
                body: dict[str, Any] = {
                    "names": channel.names,
                    "dtypes": channel.dtypes,
                    "shapes": channel.shapes,
                    "group_name": channel.group,
                    "flush_cache": False,
                }
                if channel is self._channels[-1]:
                    body["weight_version"] = str(version)
                answer = call(self._engine, "/update_weights_from_distributed", body, seconds)
            return answer

        return sent_update(self._engine, version, take, expect_hash=expect_hash, seconds=seconds)

    def leave(self) -> None:
        """Leave the groups, as far as the engine answers."""
        for group in self._joined:
            with suppress(EngineError):
                call(self._engine, "/destroy_weights_update_group", {"group_name": group}, self._seconds)
        self._joined = []
