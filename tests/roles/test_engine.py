"""The engine of an inference role: what becomes of the role when the engine ends under it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.schedule import Schedule
from hpcrl.recipe import Schedule as Steps
from hpcrl.roles.engine import serving
from hpcrl.roles.inference import Inference
from hpcrl.run.errors import RoleLost
from hpcrl.tracking.journal import Journal


@pytest.fixture
def context(tmp_path: Path) -> Any:
    steps = Steps(steps=1, prompts_per_step=1, samples_per_prompt=1)
    recipe = SimpleNamespace(seed=0, schedule=steps, limits=SimpleNamespace(call_s=20.0))
    identity = SimpleNamespace(name="inference.0", address="127.0.0.1", ports=(0,), gpus=(), cpus=1)
    journal = Journal(tmp_path / "journal.jsonl")
    attempt = SimpleNamespace(log=lambda name: tmp_path / f"{name}.log")
    yield SimpleNamespace(recipe=recipe, identity=identity, attempt=attempt, key="k", journal=journal)
    journal.close()


@pytest.mark.slow
def test_an_engine_whose_thread_fails_is_no_silent_engine(context: Any, tiny_model: Path, tmp_path: Path, monkeypatch: Any):
    role = Inference(model=str(tiny_model), dtype="float32", max_context=64)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room for the cache")

    # The thread tells Python of it as well.
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with serving(role, context, tmp_path) as engine:
        engine.watch()
        monkeypatch.setattr(Schedule, "step", fail)
        ((completion,),) = engine.client.generate([[1, 2, 3]], Sampling(max_new_tokens=4), seconds=20.0)
        assert len(completion.tokens) == 0, "what it has is given back, for others to go on with"
        with pytest.raises(RoleLost, match=r"embedded engine of inference\.0 on .* MemoryError.*; read .*inference\.0\.log"):
            engine.watch()
