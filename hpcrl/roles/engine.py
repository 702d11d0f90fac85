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
from typing import TYPE_CHECKING, Any

from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.data.models import resolve_model
from hpcrl.engines.client import EngineClient, EngineError
from hpcrl.roles.spanning import Span, SpannedWeights
from hpcrl.run.addresses import host_part
from hpcrl.run.errors import RoleLost, host

if TYPE_CHECKING:
    from hpcrl.engines.sglang.server import SglangServer
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


def node_weights(context: RoleContext, folder: Path, span: Span | None) -> NodeWeights:
    """What an engine loads from in this node's memory.

    Args:
        folder: of the attempt, in this node's memory.
        span: of an engine that spans nodes.
    """
    source, identity = context.attempt.run.weights, context.identity
    options: dict[str, Any] = {"wait_s": context.recipe.limits.call_s, "threads": identity.cpus, "stop": context.stop}
    if span is None:
        return NodeWeights(folder / "weights", source, **options)
    # Another engine's version may be another one than its parts agreed on.
    own = folder / f"weights-{identity.group}.{identity.replica}"
    return NodeWeights(own, source, **options) if identity.part else SpannedWeights(span, own, source, **options)


@contextmanager
def computing(role: Inference, context: RoleContext, folder: Path, span: Span) -> Iterator[Callable[[], None]]:
    """A part, not the first, of an engine that spans nodes, until the end of the block; gives what raises if it has ended.

    Raises:
        CheckFailed, RoleFailed: it cannot be started.
        Stopped: asked to stop meanwhile.
    """
    with _sglang_serving(role, context, folder, span) as (_, check):
        yield check


@contextmanager
def serving(role: Inference, context: RoleContext, folder: Path, span: Span | None = None) -> Iterator[ServedEngine]:
    """The role's engine with its first weights, until the end of the block.

    Args:
        folder: of the attempt, in this node's memory.
        span: of an engine that spans nodes, whose first part this is.

    Raises:
        CheckFailed, RoleFailed: it cannot be started.
        Stopped: asked to stop meanwhile.
    """
    made = _embedded(role, context) if role.sglang is None else _sglang_serving(role, context, folder, span)
    with made as (url, check), _client(url, context) as client:
        yield ServedEngine(client, context, check)


@contextmanager
def _sglang_serving(
    role: Inference, context: RoleContext, folder: Path, span: Span | None
) -> Iterator[tuple[str, Callable[[], None]]]:
    if span is not None:
        span.meet()
    server = _sglang(role, context, folder)

    def look() -> None:
        if span is not None:
            span.check()

    def check() -> None:
        server.check()
        look()

    try:
        yield server.start(context.stop, look), check
    finally:
        server.stop()


def _sglang(role: Inference, context: RoleContext, folder: Path) -> SglangServer:
    from hpcrl.engines.sglang.command import Place
    from hpcrl.engines.sglang.server import SglangServer

    if role.sglang is None:
        raise ValueError("the role's engine is the embedded one")
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
        nodes=identity.parts,
        node=identity.part,
        first_address=f"{host_part(identity.world_address)}:{identity.world_port}",
    )
    log_file, temporary = context.attempt.log(identity.name), folder / f"sglang-{identity.rank}"
    return SglangServer(role.sglang, place, key=context.key, log=log_file, temporary=temporary)


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
