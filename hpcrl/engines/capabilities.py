"""What an engine can do: SGLang differs from version to version, so it is asked once."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from hpcrl.engines.calls import EngineCalls, EngineRefused

EMBEDDED = "hpcrl-embedded"


@dataclass(frozen=True)
class Capabilities:
    """Of one engine.

    Attributes:
        name: ``hpcrl-embedded``, or ``sglang`` and its version.
        ranks: processes that each hold a part of the weights.
        sessions: updates by tensor or broadcast stand between ``/begin_weight_update`` and ``/end_weight_update``; SGLang from
            0.5.21.
        weights_by_name: single weights can be read; of SGLang's models only some can.
    """

    name: str
    ranks: int
    sessions: bool
    weights_by_name: bool


def probe(engine: EngineCalls) -> Capabilities:
    """Ask an engine.

    Raises:
        EngineUnavailable: it does not answer.
    """
    info: dict[str, Any] = engine.ask("GET", "/server_info", None)
    embedded = info.get("engine") == EMBEDDED
    return Capabilities(
        name=EMBEDDED if embedded else f"sglang {info.get('version')}",
        ranks=int(info.get("tp_size") or 1),
        sessions=_has(engine, "/begin_weight_update"),
        weights_by_name=not embedded and read_weight(engine, "model.norm.weight", 1) is not None,
    )


def read_weight(engine: EngineCalls, name: str, rows: int) -> list[Any] | None:
    """The first rows of a weight as the engine holds it; None if it cannot tell."""
    try:
        answer = engine.ask("POST", "/get_weights_by_name", {"name": name, "truncate_size": rows})
    except EngineRefused:
        return None
    return answer if isinstance(answer, list) else None


def _has(engine: EngineCalls, route: str) -> bool:
    """Whether there is a route that takes POST; nothing is done there."""
    try:
        engine.ask("GET", route, None)
    except EngineRefused as error:
        return error.status != HTTPStatus.NOT_FOUND
    return True
