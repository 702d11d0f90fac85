"""Weights sent into a running engine: what stands around every way of sending them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hpcrl.engines.client import EngineClient, EngineError, EngineRefused, WeightUpdate


def sent_update(
    engine: EngineClient, version: int, send: Callable[[], dict[str, Any]], *, expect_hash: str | None, seconds: float
) -> WeightUpdate:
    """Have an engine take a version that ``send`` sends; it returns the engine's last answer.

    Args:
        expect_hash: the embedded engine compares it with what it got; SGLang has no hash.

    Raises:
        EngineError: it did not arrive whole, or is not what was sent: the engine must not serve until it has loaded a whole
            version in another way.
    """
    sessions = engine.capabilities.sessions
    if sessions:
        _begin(engine, seconds)
    answer = send()
    if sessions:
        answer = call(engine, "/end_weight_update", {"expect_hash": expect_hash} if expect_hash else {}, seconds)
    engine.flush_cache()
    update = WeightUpdate(str(answer.get("message")), answer.get("hash"))
    engine.check_version(version, update)
    return update


def _begin(engine: EngineClient, seconds: float) -> None:
    try:
        call(engine, "/begin_weight_update", {}, seconds)
    except EngineRefused:
        # One that did not come to its end is open still.
        with suppress(EngineError):
            call(engine, "/end_weight_update", {}, seconds)
        call(engine, "/begin_weight_update", {}, seconds)


def call(engine: EngineClient, route: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Call a route that answers with a flag.

    Args:
        seconds: that the engine itself waits; it is granted a little longer, so that its own words are heard.

    Raises:
        EngineRefused: the flag says that it did not succeed.
    """
    answer: dict[str, Any] = engine.ask("POST", route, body, seconds=seconds + 5.0, repeat=False)
    if not answer.get("success"):
        raise EngineRefused(engine.url, route, str(answer.get("message")))
    return answer
