"""Whether an engine that has no hash of its weights holds those of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcrl.engines.calls import EngineCalls, EngineRefused
from hpcrl.engines.capabilities import read_weight

# A projection changes with every step even where the learning rate is small, unlike a norm. The first rows are the same
# however many ranks share them.
_NAME = "model.layers.0.self_attn.q_proj.weight"
_ROWS = 16


def check_loaded(engine: EngineCalls, folder: Path) -> None:
    """Compare some weights of the engine with those of a folder of safetensors, bit for bit in the engine's type.

    Raises:
        EngineRefused: they differ.
    """
    stored = _stored(folder)
    held = None if stored is None else read_weight(engine, _NAME, _ROWS)
    if held is not None and not _same(held, stored):
        what = f"{_NAME} is not that of {folder}: the engine did not take the version whole"
        raise EngineRefused(engine.url, "/get_weights_by_name", what)


def _stored(folder: Path) -> Any:
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    name = json.loads(index.read_text())["weight_map"].get(_NAME) if index.is_file() else "model.safetensors"
    if name is None or not (folder / name).is_file():
        return None
    with safe_open(folder / name, framework="pt") as file:
        return file.get_slice(_NAME)[:_ROWS] if _NAME in file.keys() else None  # noqa: SIM118 - safe_open is no mapping


def _same(held: list[Any], stored: Any) -> bool:
    import torch

    values = torch.tensor(held, dtype=torch.float32)
    # The engine may hold fewer bits than the folder, not more.
    return any(torch.equal(values, stored.to(dtype).float()) for dtype in (stored.dtype, torch.bfloat16, torch.float16))
