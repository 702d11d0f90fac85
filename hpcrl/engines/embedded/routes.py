"""SGLang's routes on the embedded engine."""

from __future__ import annotations

import asyncio
import datetime
import json
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from hpcrl.engines.embedded.engine import MEMORY, EmbeddedEngine
from hpcrl.engines.embedded.errors import RequestError, WeightUpdateError
from hpcrl.engines.embedded.group_routes import GroupRoutes
from hpcrl.engines.embedded.text import Text
from hpcrl.engines.embedded.wire import GenerateRequest, answer, read_body

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# A batch of long prompts is some megabytes of JSON.
_MOST_BODY_BYTES = 1 << 30
_HEALTH_S = 20.0


def application(engine: EmbeddedEngine, *, api_key: str | None) -> web.Application:
    """The routes as an aiohttp application; everything but ``/health`` asks for the key."""
    routes, groups = Routes(engine), GroupRoutes(engine)
    app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[_key_check(api_key), _errors])
    app.add_routes(
        [
            web.post("/generate", routes.generate),
            web.put("/generate", routes.generate),
            web.get("/health", routes.health),
            web.get("/ready", routes.health),
            web.get("/health_generate", routes.health_generate),
            web.post("/pause_generation", routes.pause),
            web.post("/continue_generation", routes.continue_),
            web.post("/update_weights_from_disk", routes.update_weights),
            web.post("/init_weights_update_group", groups.join),
            web.post("/destroy_weights_update_group", groups.leave),
            web.post("/begin_weight_update", groups.begin),
            web.post("/update_weights_from_distributed", groups.receive),
            web.post("/update_weights_from_tensor", groups.take),
            web.post("/end_weight_update", groups.end),
            web.post("/release_memory_occupation", routes.release_memory),
            web.post("/resume_memory_occupation", routes.resume_memory),
            web.post("/abort_request", routes.abort),
            web.get("/flush_cache", routes.flush_cache),
            web.post("/flush_cache", routes.flush_cache),
            web.get("/model_info", routes.model_info),
            web.get("/get_model_info", routes.model_info),
            web.get("/server_info", routes.server_info),
            web.get("/get_server_info", routes.server_info),
            web.get("/v1/loads", routes.loads),
            web.get("/metrics", routes.metrics),
        ]
    )
    return app


def _key_check(api_key: str | None) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if api_key and request.path != "/health":
            kind, _, given = request.headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or not secrets.compare_digest(given.encode(), api_key.encode()):
                return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return check


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response({"error": {"message": str(error)}}, status=error.status)


class Routes:
    """The handlers."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._text = Text(engine.settings.model_path)

    async def generate(self, request: web.Request) -> web.Response:
        """``/generate``: aborts its samples if the client goes away."""
        began = time.monotonic()
        wanted = GenerateRequest.parse(await read_body(request))
        prompts = [self._text.encode(p) if isinstance(p, str) else p for p in wanted.prompts]
        samples = len(prompts) * (wanted.sampling[0].get("n") or 1)
        prefix = uuid.uuid4().hex
        future = self._engine.submit(
            prompts,
            wanted.sampling,
            rids=wanted.rids or [f"{prefix}_{i}" for i in range(samples)],
            return_logprob=wanted.return_logprob,
            logprob_start_len=wanted.logprob_start_len,
        )
        try:
            sequences = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            for rid in wanted.rids or [prefix]:
                self._engine.abort_soon(rid)
            raise
        texts = self._text.decode(sequences)
        latency, version = time.monotonic() - began, self._engine.weights.version
        answers = [answer(s, version=version, text=t, latency_s=latency) for s, t in zip(sequences, texts, strict=True)]
        return web.json_response(answers[0] if wanted.single else answers)

    async def health(self, _: web.Request) -> web.Response:
        """``/health``: 200 while the engine can serve, else 503 and why."""
        why = self._engine.broken
        return web.Response(status=200) if why is None else web.Response(status=503, text=why)

    async def health_generate(self, request: web.Request) -> web.Response:
        """``/health_generate``: makes one token if the engine is idle, else asks its thread for a sign of life."""
        engine = self._engine
        if engine.broken is not None:
            return await self.health(request)
        try:
            idle = await asyncio.wait_for(asyncio.to_thread(engine.flush_cache), _HEALTH_S)
            if idle and engine.paused is None:
                future = engine.submit([[0]], [{"max_new_tokens": 1, "temperature": 0}])
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), _HEALTH_S)
        except TimeoutError:
            return web.Response(status=503, text=f"no answer from the engine's thread in {_HEALTH_S:g} s")
        return web.Response(status=200)

    async def pause(self, request: web.Request) -> web.Response:
        """``/pause_generation``: ``mode`` abort, retract or in_place."""
        mode = (await read_body(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise RequestError(f"mode must be abort, retract or in_place, got {mode!r}")
        await asyncio.to_thread(self._engine.pause, mode)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_(self, _: web.Request) -> web.Response:
        """``/continue_generation``."""
        await asyncio.to_thread(self._engine.continue_)
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights(self, request: web.Request) -> web.Response:
        """``/update_weights_from_disk``; ``expect_hash`` and the answer's ``hash`` are additions to SGLang's fields."""
        body = await read_body(request)
        path = body.get("model_path")
        if not isinstance(path, str):
            raise RequestError("model_path must be a string")
        try:
            report = await asyncio.to_thread(
                self._engine.update_weights,
                Path(path),
                body.get("weight_version"),
                expect_hash=body.get("expect_hash"),
                abort_all=bool(body.get("abort_all_requests", False)),
                flush_cache=bool(body.get("flush_cache", True)),
            )
        except WeightUpdateError as error:
            return web.json_response({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        message = f"Succeeded to update model weights. Weight version updated to {report.version}."
        content = {"success": True, "message": message, "num_paused_requests": report.held, "hash": report.hash}
        return web.json_response(content)

    async def release_memory(self, request: web.Request) -> web.Response:
        """``/release_memory_occupation``: ``tags`` weights and kv_cache; both if there are none."""
        await asyncio.to_thread(self._engine.release_memory, await _tags(request))
        return web.Response(status=200)

    async def resume_memory(self, request: web.Request) -> web.Response:
        """``/resume_memory_occupation``: as the release."""
        await asyncio.to_thread(self._engine.resume_memory, await _tags(request))
        return web.Response(status=200)

    async def abort(self, request: web.Request) -> web.Response:
        """``/abort_request``: ``rid`` or ``abort_all``."""
        body = await read_body(request)
        await asyncio.to_thread(self._engine.abort, body.get("rid") or "", abort_all=bool(body.get("abort_all", False)))
        return web.Response(status=200)

    async def flush_cache(self, _: web.Request) -> web.Response:
        """``/flush_cache``: caches live only as long as their requests, so this only says whether any is held."""
        if await asyncio.to_thread(self._engine.flush_cache):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed: requests are running or waiting.\n", status=400)

    async def model_info(self, _: web.Request) -> web.Response:
        """``/model_info``."""
        engine, weights = self._engine, self._engine.weights
        return web.json_response(
            {
                "model_path": str(weights.path),
                "served_model_name": str(engine.settings.model_path),
                "tokenizer_path": str(engine.settings.model_path),
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": weights.version,
                "weight_hash": weights.hash or None,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": engine.model.config.model_type,
                "architectures": engine.model.config.architectures,
            }
        )

    async def server_info(self, _: web.Request) -> web.Response:
        """``/server_info``: the settings, and what the engine is at."""
        engine = self._engine
        content = asdict(engine.settings) | {
            "context_length": engine.model.max_context,
            "internal_states": [self._load()],
            "engine": "hpcrl-embedded",
        }
        return web.Response(text=json.dumps(content, default=str), content_type="application/json")

    async def loads(self, _: web.Request) -> web.Response:
        """``/v1/loads``."""
        now = datetime.datetime.now(datetime.UTC).isoformat()
        return web.json_response({"timestamp": now, "version": "hpcrl-embedded", "loads": [self._load()]})

    async def metrics(self, _: web.Request) -> web.Response:
        """``/metrics``: Prometheus text under SGLang's names."""
        text = self._engine.figures.prometheus(self._engine.settings.model_path.name, self._engine.capacity_tokens)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    def _load(self) -> dict[str, Any]:
        figures, capacity = self._engine.figures, self._engine.capacity_tokens
        return {
            "dp_rank": 0,
            "num_running_reqs": figures.running,
            "num_waiting_reqs": figures.waiting,
            "num_used_tokens": figures.used_tokens,
            "num_total_tokens": figures.used_tokens,
            "max_total_num_tokens": capacity,
            "max_running_requests": self._engine.settings.max_running_rows,
            "token_usage": figures.used_tokens / capacity,
            "gen_throughput": figures.throughput(),
            "paused": self._engine.paused,
            "memory_bytes": self._engine.memory,
        }


async def _tags(request: web.Request) -> list[Any]:
    tags = (await read_body(request)).get("tags") or list(MEMORY)
    # SGLang has one more, which this engine has nothing of.
    unknown = [tag for tag in tags if tag not in (*MEMORY, "cuda_graph")]
    if unknown:
        raise RequestError(f"tags must be of {', '.join(MEMORY)}, got {unknown}")
    return [tag for tag in tags if tag in MEMORY]
