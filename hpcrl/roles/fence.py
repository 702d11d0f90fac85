"""The version fence: an engine runs one announced version, whole and verified, or is out of routing.

Imported only in a process that serves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.engines.client import EngineClient, EngineError, EngineUnavailable
from hpcrl.roles.feedback import NOT_SERVING, POLICY, SERVED
from hpcrl.roles.receiving import Receiving
from hpcrl.roles.shared_engine import SharedEngine
from hpcrl.roles.turns import Turns
from hpcrl.run.errors import DeadlineExceeded, RoleFailed, RoleLost
from hpcrl.run.failpoints import reach

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)

_FAILURES = (EngineError, WeightsError, DeadlineExceeded)


@dataclass(frozen=True)
class _Loaded:
    """What an engine runs now: the version, the hash of what it holds where it tells one, and the way that it came."""

    version: int
    hash: str | None
    way: str


class VersionFence:
    """Keeps one engine at the newest announced version.

    Args:
        node: the weights of this node.
        receiving: the way to try first, if that is not what was published.
        pause: see :class:`hpcrl.roles.inference.Inference`.
        watch: called again and again while nothing is to be done; raises if the engine has ended.
        turns: of the engine's group, which has its turn now.
    """

    def __init__(
        self,
        context: RoleContext,
        engine: EngineClient,
        node: NodeWeights,
        receiving: Receiving | None = None,
        *,
        pause: Literal["abort", "retract", "in_place"],
        watch: Callable[[], None] = lambda: None,
        turns: Turns | None = None,
    ) -> None:
        self._context, self._engine, self._node, self._pause = context, engine, node, pause
        self._receiving, self._watch = receiving, watch
        self._shared = SharedEngine(context, engine, turns or Turns(context), watch)

    def follow(self) -> None:
        """Switch to each newest version as it is announced, and announce that it is served, until stopped.

        Raises:
            RoleFailed: a version could not be loaded, nor after that the newest one from a fresh base; or the engine ended.
            Stopped, DeadlineExceeded: as the context's waits.
        """
        try:
            self._follow()
        except RoleLost:
            # While it is started again nobody is to ask it.
            self._context.queue.announce(SERVED, {"version": NOT_SERVING, "url": self._engine.url})
            raise

    def _follow(self) -> None:
        context, version = self._context, -1
        while True:
            context.phase("serve", step=max(version, 0))
            policy = self._shared.next_policy(version, self._newer)
            context.phase("update", step=int(policy["version"]))
            started, read = time.monotonic(), self._node.reads.bytes
            loaded = self._switch(policy)
            version, seconds = loaded.version, time.monotonic() - started
            self._shared.loaded(seconds)
            context.journal.write(
                "served",
                version=version,
                load_s=seconds,
                hash=loaded.hash,
                way=loaded.way,
                read_bytes=self._node.reads.bytes - read,
            )
            context.queue.announce(SERVED, {"version": version, "url": self._engine.url})

    def _switch(self, policy: Mapping[str, Any]) -> _Loaded:
        context, who = self._context, self._context.identity.name
        try:
            return self._load(policy)
        except _FAILURES as error:
            self._watch()
            log.warning("version %s was not loaded: %s; no request comes here until a whole one is", policy["version"], error)
            context.queue.announce(SERVED, {"version": NOT_SERVING, "url": self._engine.url})
            context.journal.write("unserved", version=policy["version"], error=str(error))
        self._node.distrust()
        newest = context.wait_feedback(POLICY, partial(self._newer, than=-1), "the newest policy version")
        try:
            return self._load(newest, published=True)
        except _FAILURES as error:
            self._watch()
            # One that does not answer any more may do so once it is started again.
            raise (RoleLost if isinstance(error, EngineUnavailable) else RoleFailed)(
                f"{who}: version {newest['version']} could not be loaded even from a fresh base: {error}",
                read=context.attempt.log(who),
                do="the next attempt publishes a base anew: resume the run",
            ) from error

    def _load(self, policy: Mapping[str, Any], *, published: bool = False) -> _Loaded:
        """Have the engine run a version, or a newer one that the node has.

        Args:
            published: as it was published, and in no other way.

        Raises:
            EngineError: it did not load, or its hash is not the trainer's; the engine is paused.
            WeightsError: the version cannot be brought to this node.
        """
        engine = self._engine
        info = engine.model_info()
        if not self._shared.blank and info.version == policy["version"] and info.weight_hash == policy["hash"]:
            engine.continue_()
            return _Loaded(info.version, info.weight_hash, "none")
        if self._receiving is not None and not published and (taken := self._receiving.take(policy)) is not None:
            engine.continue_()
            return _Loaded(taken.version, taken.hash, self._receiving.way)
        with self._node.bring(int(policy["version"]), policy["hash"]) as brought:
            reach("update.begin", brought.path)
            engine.pause(self._pause)
            update = engine.update_weights_from_disk(brought.path, brought.version, expect_hash=brought.hash)
        # Only a version that was loaded whole goes on.
        engine.continue_()
        reach("update.done")
        return _Loaded(brought.version, update.weight_hash, "disk")

    def _newer(self, newest: Mapping[str, Mapping[str, Any]], than: int) -> Mapping[str, Any] | None:
        self._watch()
        policies = [policy for policy in newest.values() if policy["version"] > than]
        return max(policies, key=lambda policy: int(policy["version"]), default=None)
