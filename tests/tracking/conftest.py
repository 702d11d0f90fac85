"""A run directory with the journals that two attempts of a small run leave."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.run.directory import Attempt, RunDirectory

RECIPE = {
    "name": "tiny",
    "seed": 0,
    "schedule": {"steps": 6, "prompts_per_step": 2, "samples_per_prompt": 4, "window": 1},
    "groups": {"trainer": {"role": {"lr": 1e-5}, "replicas": 1, "note": "x" * 9000}, "reward": {"replicas": 2}},
    "streams": [],
}


def write(attempt: Attempt, writer: str, *records: dict) -> None:
    with open(attempt.journal / f"{writer}.jsonl", "a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def write_step(attempt: Attempt, step: int, *, t: float | None = None, **more: float | None) -> None:
    """What the trainer, a reward role of two replicas, rollout and inference write around one step."""
    noise = random.Random(step * 1000 + attempt.number)
    t = 1_700_000_000.0 + 10 * step + 1000 * attempt.number if t is None else t
    for replica in range(2):
        write(
            attempt,
            f"reward.{replica}",
            {"t": t - 1, "kind": "outcomes", "step": step, "right": step % 4, "wrong": 3, "unparseable": 1, "timeout": 0},
        )
    write(attempt, "rollout.0", {"t": t - 2, "kind": "sampled", "prompts": 2, "samples": 8, "tokens": 80, "seconds": 2.0})
    write(attempt, "rollout.0", {"t": t - 2, "kind": "phase", "name": "generate", "step": step})
    write(
        attempt,
        "trainer.0",
        {"t": t - 0.5, "kind": "phase", "name": "step", "step": step},
        {
            "t": t,
            "kind": "step",
            "step": step,
            "version": step,
            "reward": 0.1 * step + noise.uniform(-0.05, 0.05),
            "loss": noise.uniform(-0.1, 0.1),
            "grad_norm": noise.uniform(0.5, 2),
            "lr": 1e-5,
            "samples": 8,
            "kept_samples": 6,
            "response_tokens": 10.0 + step,
            "trained_tokens": 80,
            "step_s": 4.0,
            "wait_s": 2.5,
            "train_s": 1.0,
            "publish_s": 0.25,
            "version_lag_mean": 0.5,
            "version_lag_max": 1,
            "logprob_gap_mean": 0.001,
            "queue_rows": 16,
            **more,
        },
    )
    write(
        attempt,
        "inference.0",
        {"t": t + 0.2, "kind": "served", "version": step, "load_s": 0.2, "hash": f"{step:016x}"},
        {"t": t + 0.3, "kind": "phase", "name": "serve", "step": None},
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", name="tiny", recipe_json=json.dumps(RECIPE))


@pytest.fixture
def record() -> Callable[..., None]:
    return write


@pytest.fixture
def record_step() -> Callable[..., None]:
    return write_step


@pytest.fixture
def trained(run: RunDirectory) -> RunDirectory:
    """Six steps in one attempt."""
    attempt = run.new_attempt()
    for step in range(1, 7):
        write_step(attempt, step)
    return run


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a row, copied by each test."""
    from hpcrl.tracking import mlflow_empty
    from hpcrl.tracking.mlflow_feed import quiet_mlflow

    quiet_mlflow()
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    path.write_bytes(mlflow_empty.empty_database())
    return path
