"""Inference: an engine behind HTTP, kept at the newest policy version.

The role starts an engine that speaks SGLang's routes, follows the trainer's announcements on ``policy`` and, once the
engine runs a version, announces that on ``served`` with the engine's address. A version that did not load whole is never
announced, so no request is routed to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hpcrl.data.models import model_problems, resolve_model
from hpcrl.recipe import Recipe, Role
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    from hpcrl.engines.client import EngineClient
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Inference(Role):
    """Generates with the newest policy weights.

    Attributes:
        model: directory in Hugging Face layout, or a name that ``hpcrl.data.models.resolve_model`` knows.
        dtype: the engine computes in this type and holds the weights in it.
        max_context: longest prompt plus response [tokens].
        pause: what happens to requests under way while weights change: they end with what they have (abort), are computed
            again from their tokens (retract), or go on with their cache (in_place).
        chunk_tokens: tokens generated between two looks at new requests, aborts and pauses.
    """

    service: ClassVar[bool] = True

    model: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_context: int = 1024
    pause: Literal["abort", "retract", "in_place"] = "in_place"
    chunk_tokens: int = 8

    def listens(self) -> tuple[str, ...]:
        """The trainer's announcements."""
        return (POLICY,)

    def announces(self) -> tuple[str, ...]:
        """What this replica serves, and where."""
        return (SERVED,)

    def check(self, recipe: Recipe) -> list[str]:
        """The model is there and its vocabulary is the tokenizer's."""
        try:
            return model_problems(resolve_model(self.model))
        except CheckFailed as failed:
            return list(failed.problems)

    def run(self, context: RoleContext) -> None:
        """Serve until stopped, switching to each newest version as it is announced."""
        from hpcrl.engines.client import EngineClient
        from hpcrl.engines.embedded.server import EmbeddedServer
        from hpcrl.engines.embedded.settings import EngineSettings

        identity = context.identity
        settings = EngineSettings(
            model_path=resolve_model(self.model),
            dtype=self.dtype,
            device=f"cuda:{identity.gpus[0]}" if identity.gpus else "cpu",
            threads=identity.cpus,
            max_context=self.max_context,
            chunk_tokens=self.chunk_tokens,
            seed=context.recipe.seed,
            # Only lock-step repeats as a whole, and there a batch is one request.
            repeatable=context.recipe.schedule.window == 1,
        )
        context.phase("load")
        server = EmbeddedServer(settings, address=identity.address, port=identity.ports[0], api_key=context.key)
        url = server.start()
        log.info("engine listens at %s", url)
        try:
            with EngineClient(url, key=context.key, call_s=context.recipe.limits.call_s) as engine:
                self._follow(context, engine)
        finally:
            server.stop()

    def _follow(self, context: RoleContext, engine: EngineClient) -> None:
        version = -1
        while True:
            context.phase("serve", step=max(version, 0))
            policy = context.wait_feedback(POLICY, partial(_newer, than=version), f"a policy version after {version}")
            version = int(policy["version"])
            context.phase("update", step=version)
            started = time.monotonic()
            loaded = self._load(engine, policy)
            context.journal.write("served", version=version, load_s=time.monotonic() - started, hash=loaded)
            context.queue.announce(SERVED, {"version": version, "url": engine.url})

    def _load(self, engine: EngineClient, policy: Mapping[str, Any]) -> str | None:
        """Have the engine run a version; returns the hash of what it holds, where it tells one.

        Raises:
            EngineError: it did not load, or its hash is not the trainer's. The version must not be announced then.
        """
        info = engine.model_info()
        if info.version == policy["version"] and info.weight_hash == policy["hash"]:
            return info.weight_hash
        engine.pause(self.pause)
        update = engine.update_weights_from_disk(
            Path(policy["path"]), policy["version"], flush_cache=self.pause != "in_place", expect_hash=policy["hash"]
        )
        engine.continue_()
        return update.weight_hash


def _newer(newest: Mapping[str, Mapping[str, Any]], than: int) -> Mapping[str, Any] | None:
    policies = [policy for policy in newest.values() if policy["version"] > than]
    return max(policies, key=lambda policy: int(policy["version"]), default=None)
