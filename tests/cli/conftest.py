"""A run with saves and policy versions as the trainer itself makes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done

STEPS = 4


def _train(run: RunDirectory, model: Path) -> None:
    """Four steps with a save and a version after each, by the trainer's own code."""
    from hpcrl.checkpoint.cursor import Cursor
    from hpcrl.checkpoint.publish.publisher import Publisher
    from hpcrl.checkpoint.state.identity import model_fingerprint
    from hpcrl.checkpoint.state.manifest import Identity
    from hpcrl.checkpoint.state.saver import About, Saved
    from hpcrl.engines.titan.samples import Sample
    from hpcrl.engines.titan.settings import TrainerSettings, World
    from hpcrl.engines.titan.trainer import TitanTrainer

    settings = TrainerSettings(model=str(model), compute_dtype="float32", lr=1e-4, keep_states=100)
    trainer = TitanTrainer(settings, World())
    publisher = Publisher(run.weights, model, trainer.hf_specs(), attempt=1)
    ids = np.arange(3, 9, dtype=np.int32)
    logprobs = np.full(len(ids), -1.0, np.float32)
    batch = [Sample(prompt_ids=ids, response_ids=ids, behaviour_logprobs=logprobs, advantage=a, group=0) for a in (1.0, -0.5)]
    publisher.publish(0, trainer.hf_tensors())
    for step in range(1, STEPS + 1):
        trainer.train_batch(batch)
        publisher.publish(step, trainer.hf_tensors(), whole=step == 3)
        about = About(
            run_id=run.run_id,
            policy_version=step,
            cursor=Cursor(step=step, prompts=4 * step),
            rows=np.arange(8, dtype=np.int64),
            identity=Identity(model=model_fingerprint(model)),
            metrics={"reward": 1.0 if step == 2 else 0.1 * step, "loss": -0.1 * step},
        )
        trainer.begin_save(run.state, about)
        assert isinstance(trainer.finish_save(seconds=120), Saved)
    trainer.close()


@pytest.fixture(scope="session")
def _original(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    role = {"$type": "hpcrl.roles.trainer:Trainer", "model": str(tiny_model), "keep_states": 3, "keep_weights": 2}
    recipe = {"schedule": {"steps": STEPS}, "groups": {"trainer": {"role": role}}, "streams": []}
    path = tmp_path_factory.mktemp("runs") / "sums"
    run = RunDirectory.create(path, name="sums", recipe_json=json.dumps(recipe))
    attempt = run.new_attempt()
    attempt.log("trainer.0").write_text("")
    _train(run, tiny_model)
    write_done(attempt, DoneRecord(process="trainer.0", status="done"))
    return run


@pytest.fixture
def trained(_original: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of a run that trained four steps: a save and a bfloat16 version of each, 0 and 3 bases, 1, 2 and 4 patches."""
    shutil.copytree(_original.path, tmp_path / "a run, 東京", symlinks=True)
    return RunDirectory.open(tmp_path / "a run, 東京")
