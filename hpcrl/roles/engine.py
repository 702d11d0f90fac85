"""The engine of an inference role: the embedded one in this process, or SGLang beside it.

Imported only in a process that serves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.data.models import resolve_model
from hpcrl.engines.client import EngineClient, EngineError
from hpcrl.run.errors import RoleLost, host

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext
    from hpcrl.roles.inference import Inference

log = logging.getLogger(__name__)

# Between two entries of what an engine is at in the journal.
_LOADS_S = 10.0


class ServedEngine:
    """An engine that serves.

    Args:
        check: raises if it has ended.
    """

    def __init__(self, client: EngineClient, context: RoleContext, check: Callable[[], None]) -> None:
        self.client, self._context, self._check = client, context, check
        self._next_loads = 0.0

    def watch(self) -> None:
        """Look whether it still serves, and note now and then what it is at. To be called while waiting for other things.

        Raises:
            RoleLost: it has ended.
        """
        self._check()
        if time.monotonic() < self._next_loads:
            return
        self._next_loads = time.monotonic() + _LOADS_S
        try:
            version = self.client.model_info().version
            self._context.journal.write("metrics", step=version, **asdict(self.client.loads()))
        except EngineError as error:
            log.warning("what the engine is at is not known: %s", error)


@contextmanager
def serving(role: Inference, context: RoleContext, folder: Path) -> Iterator[ServedEngine]:
    """The role's engine with its first weights, until the end of the block.

    Args:
        folder: of the attempt, in this node's memory.

    Raises:
        CheckFailed, RoleFailed: it cannot be started.
        Stopped: asked to stop meanwhile.
    """
    if role.sglang is None:
        with _embedded(role, context) as (url, check), _client(url, context) as client:
            yield ServedEngine(client, context, check)
        return
    from hpcrl.engines.sglang.command import Place
    from hpcrl.engines.sglang.server import SglangServer

    identity = context.identity
    place = Place(
        model=resolve_model(role.model),
        address=identity.address,
        port=identity.ports[0],
        inner_port=identity.ports[1],
        dtype=role.dtype,
        context=role.max_context,
        seed=context.recipe.seed,
        gpus=identity.gpus,
        threads=identity.cpus,
    )
    log_file, temporary = context.attempt.log(identity.name), folder / f"sglang-{identity.rank}"
    server = SglangServer(role.sglang, place, key=context.key, log=log_file, temporary=temporary)
    try:
        with _client(server.start(context.stop), context) as client:
            yield ServedEngine(client, context, server.check)
    finally:
        server.stop()


@contextmanager
def _embedded(role: Inference, context: RoleContext) -> Iterator[tuple[str, Callable[[], None]]]:
    from hpcrl.engines.embedded.server import EmbeddedServer
    from hpcrl.engines.embedded.settings import EngineSettings

    identity = context.identity
    settings = EngineSettings(
        model_path=resolve_model(role.model),
        dtype=role.dtype,
        device=f"cuda:{identity.gpus[0]}" if identity.gpus else "cpu",
        threads=identity.cpus,
        max_context=role.max_context,
        chunk_tokens=role.chunk_tokens,
        seed=context.recipe.seed,
        # Only lock-step repeats as a whole, and there a batch is one request.
        repeatable=context.recipe.schedule.window == 1,
    )
    server = EmbeddedServer(settings, address=identity.address, port=identity.ports[0], api_key=context.key)

    def check() -> None:
        if (error := server.engine.failure) is not None:
            raise RoleLost(
                f"the embedded engine of {identity.name} on {host()} cannot compute: {error!r}",
                read=context.attempt.log(identity.name),
                do="where it was out of memory, lower max_context or the samples of a step",
            ) from error

    try:
        yield server.start(), check
    finally:
        server.stop()


@contextmanager
def _client(url: str, context: RoleContext) -> Iterator[EngineClient]:
    with EngineClient(url, key=context.key, call_s=context.recipe.limits.call_s) as client:
        capabilities = client.capabilities
        log.info("engine %s listens at %s: %s", capabilities.name, url, capabilities)
        context.journal.write("engine", url=url, **asdict(capabilities))
        yield client
