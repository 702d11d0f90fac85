"""SGLang's routes for weights that peers send, on the embedded engine.

``timeout_s``, ``expect_hash`` and the answers' ``hash`` are additions to SGLang's fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import torch
from aiohttp import web

from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.engines.embedded.engine import EmbeddedEngine
from hpcrl.engines.embedded.errors import RequestError, WeightUpdateError
from hpcrl.engines.embedded.handed import handed_tensors
from hpcrl.engines.embedded.holding import WeightReport
from hpcrl.engines.embedded.wire import read_body

_DEFAULT_GROUP = "weight_update_group"
_TIMEOUT_S = 300.0


class GroupRoutes:
    """The handlers."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    async def join(self, request: web.Request) -> web.Response:
        """``/init_weights_update_group``: answers once all members are there."""
        body = _Body(await read_body(request))
        backend = body.one_of("backend", ("gloo", "nccl"), "nccl")
        if backend == "nccl" and self._engine.model.device.type != "cuda":
            raise RequestError("this engine is on a CPU, where backend must be gloo")
        try:
            await asyncio.to_thread(
                self._engine.groups.join,
                body.text("group_name", _DEFAULT_GROUP),
                body.text("master_address"),
                body.whole("master_port"),
                rank=body.whole("rank_offset"),
                size=body.whole("world_size"),
                backend=backend,
                seconds=body.number("timeout_s", _TIMEOUT_S),
            )
        except TransportError as error:
            return _answer(False, str(error))
        return _answer(True, "Succeeded to initialize custom process group.")

    async def leave(self, request: web.Request) -> web.Response:
        """``/destroy_weights_update_group``."""
        name = _Body(await read_body(request)).text("group_name", _DEFAULT_GROUP)
        if await asyncio.to_thread(self._engine.groups.leave, name):
            return _answer(True, "Succeeded to destroy custom process group.")
        return _answer(False, f"The group to be destroyed does not exist: {name!r}.")

    async def begin(self, _: web.Request) -> web.Response:
        """``/begin_weight_update``: as other updates, waits for running requests unless the engine is paused."""
        return await _do(self._engine.begin_update)

    async def receive(self, request: web.Request) -> web.Response:
        """``/update_weights_from_distributed``: ``names``, ``dtypes`` and ``shapes``, in the order of the broadcasts."""
        body = _Body(await read_body(request))
        names, dtypes, shapes = body.listed("names"), body.listed("dtypes"), body.listed("shapes")
        if not len(names) == len(dtypes) == len(shapes):
            raise RequestError(
                f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes; there must be as many of each"
            )
        types = [getattr(torch, str(dtype), None) for dtype in dtypes]
        for dtype, kind in zip(dtypes, types, strict=True):
            if not isinstance(kind, torch.dtype):
                raise RequestError(f"no dtype: {dtype!r}")
        for shape in shapes:
            if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
                raise RequestError(f"no shape: {shape!r}")
        version, group = body.get("weight_version"), body.text("group_name", _DEFAULT_GROUP)
        return await _do(
            lambda: self._engine.receive_weights(
                group,
                [str(name) for name in names],
                [kind for kind in types if kind is not None],
                [tuple(shape) for shape in shapes],
                version=None if version is None else str(version),
            )
        )

    async def take(self, request: web.Request) -> web.Response:
        """``/update_weights_from_tensor``: handles to memory of this node."""
        body = _Body(await read_body(request))
        payloads, version = body.listed("serialized_named_tensors"), body.get("weight_version")
        if len(payloads) != 1:
            raise RequestError(
                f"serialized_named_tensors must be a list of one, as this engine is one process, not {len(payloads)}"
            )
        tensors = handed_tensors(payloads[0])
        return await _do(lambda: self._engine.take_tensors(tensors, None if version is None else str(version)))

    async def end(self, request: web.Request) -> web.Response:
        """``/end_weight_update``: refuses, and leaves the engine unhealthy, if not all weights came or they hash otherwise."""
        expect = (await read_body(request)).get("expect_hash")
        return await _do(lambda: self._engine.end_update(expect))


class _Body:
    """A JSON object whose fields have the expected types.

    Raises:
        RequestError: on each call, where it is or has none.
    """

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise RequestError("the body must be a JSON object")
        self._body = body

    def get(self, key: str) -> Any:
        return self._body.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._body.get(key, default)
        if not isinstance(value, str) or not value:
            raise RequestError(f"{key} must be a string that is not empty, got {value!r}")
        return value

    def one_of(self, key: str, values: tuple[Any, ...], default: str) -> Any:
        value = self._body.get(key, default)
        if value not in values:
            raise RequestError(f"{key} must be one of {', '.join(values)}, got {value!r}")
        return value

    def whole(self, key: str) -> int:
        value = self._body.get(key)
        if type(value) is not int or value < 0:
            raise RequestError(f"{key} must be a whole number of at least 0, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._body.get(key, default)
        if type(value) not in (int, float) or not value > 0:
            raise RequestError(f"{key} must be a number above 0, got {value!r}")
        return float(value)

    def listed(self, key: str) -> list[Any]:
        value = self._body.get(key)
        if not isinstance(value, list):
            raise RequestError(f"{key} must be a list, got {type(value).__name__}")
        return value


async def _do(call: Callable[[], WeightReport]) -> web.Response:
    try:
        report = await asyncio.to_thread(call)
    except WeightUpdateError as error:
        return _answer(False, str(error))
    return _answer(True, f"Success. Weight version is {report.version}.", hash=report.hash)


def _answer(success: bool, message: str, **more: Any) -> web.Response:
    return web.json_response({"success": success, "message": message, **more}, status=200 if success else 400)
