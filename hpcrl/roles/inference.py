"""Inference: an engine behind HTTP, kept at the newest policy version.

The role starts an engine that speaks SGLang's routes, follows the trainer's announcements on ``policy`` and, once the
engine runs a version, announces that on ``served`` with the engine's address. A version that did not load whole is never
announced, so no request is routed to it. All engines of a node load from the node's memory, which one of them fills.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from hpcrl.data.models import model_problems, resolve_model
from hpcrl.recipe import Recipe, Role
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
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
        transport: how weights come: from the run's file system (disk), from the shared memory of a node that the whole trainer
            is on too (memory), by a broadcast of torch.distributed into the running engine (distributed), as published files
            over an encrypted connection (tcp), or by memory where it can be and else from the disk (auto). Whatever goes wrong
            on another way, the version is taken from the disk.
    """

    service: ClassVar[bool] = True

    model: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_context: int = 1024
    pause: Literal["abort", "retract", "in_place"] = "in_place"
    chunk_tokens: int = 8
    transport: Literal["auto", "disk", "memory", "distributed", "tcp"] = "disk"

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

    def prepare(self, *, gpus: bool) -> None:
        """The engine, its server, and the model's own code."""
        import hpcrl.engines.embedded.server
        import hpcrl.roles.fence  # noqa: F401
        from hpcrl.engines.embedded.model import import_family

        import_family(resolve_model(self.model))

    def run(self, context: RoleContext) -> None:
        """Serve until stopped, switching to each newest version as it is announced."""
        from hpcrl.checkpoint.publish.node import NodeWeights
        from hpcrl.dataplane.shm.folders import kept_folder
        from hpcrl.engines.client import EngineClient
        from hpcrl.engines.embedded.server import EmbeddedServer
        from hpcrl.engines.embedded.settings import EngineSettings
        from hpcrl.roles.fence import VersionFence
        from hpcrl.roles.receiving import Receiving

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
        limits, attempt = context.recipe.limits, context.attempt
        try:
            with kept_folder(attempt) as folder, EngineClient(url, key=context.key, call_s=limits.call_s) as engine:
                node = NodeWeights(folder / "weights", attempt.run.weights, wait_s=limits.call_s, stop=context.stop)
                with closing(Receiving(context, engine, folder, pause=self.pause)) as receiving:
                    VersionFence(context, engine, node, receiving, pause=self.pause).follow()
        finally:
            server.stop()
