"""The whole loop to its end: what is computed, what is served, how far it runs ahead, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]

STEPS = 3


@pytest.fixture(scope="module")
def alone(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In one process, lock-step: the reference that nothing can run ahead of."""
    ended = launcher.in_process(tmp_path_factory.mktemp("alone") / "run", steps=STEPS, own_role=True)
    assert ended.code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def apart(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same in processes, with the real queue."""
    ended = launcher.run(tmp_path_factory.mktemp("apart") / "run", steps=STEPS, own_role=True)
    assert ended.code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def doubled(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two of every role, the trainer sharded over two ranks, one batch ahead."""
    ended = launcher.run(tmp_path_factory.mktemp("doubled") / "run", steps=STEPS, window=2, ranks=2, replicas=2)
    assert ended.code == 0, ended.output
    return ended


def check_served(ended: Any, steps: int = STEPS) -> None:
    published = ended.published()
    assert set(published) == set(range(steps + 1))
    assert len(set(published.values())) == steps + 1, "every step changed the weights"
    served = ended.records("served")
    assert served
    assert all(record["hash"] == published[record["version"]] for record in served)


def check_trained_once(ended: Any, prompts: int, samples: int = 4) -> None:
    assert ended.cursor() == {"step": len(ended.steps()), "prompts": prompts, "beyond": []}
    assert sum(step["samples"] for step in ended.steps()) == prompts * samples


def test_lock_step_in_processes_is_the_synchronous_run_bit_for_bit(alone: Any, apart: Any):
    assert apart.computed() == alone.computed()
    assert apart.published() == alone.published()
    assert len(apart.steps()) == STEPS
    assert all(step["grad_norm"] > 0 and step["reward_std"] > 0 for step in apart.steps()), "there was something to learn"


def test_the_history_proves_each_run(alone: Any, apart: Any, doubled: Any, launcher: Any):
    for ended in (alone, apart, doubled):
        code, output = launcher.call("verify", str(ended.path))
        assert code == 0, output


def test_engines_serve_what_the_trainer_published_at_every_version(alone: Any, apart: Any, doubled: Any):
    for ended in (alone, apart, doubled):
        check_served(ended)
    # In lock-step an engine cannot skip a version.
    assert [record["version"] for record in apart.records("served")][:STEPS] == list(range(STEPS))


def test_every_prompt_is_trained_once(alone: Any, apart: Any, doubled: Any):
    for ended in (alone, apart, doubled):
        check_trained_once(ended, STEPS * 4)


def test_the_window_bounds_the_version_lag(apart: Any, doubled: Any):
    assert {step["version_lag_max"] for step in apart.steps()} == {0}
    lags = [step["version_lag_max"] for step in doubled.steps()]
    # Rollout may run ahead, and on a busy machine it does not always.
    assert lags[0] == 0
    assert max(lags) == 1


def test_two_ranks_learn_as_one(apart: Any, doubled: Any):
    one, two = apart.steps()[0], doubled.steps()[0]
    assert two["reward"] == one["reward"]
    assert two["samples_kept"] == one["samples_kept"]
    for name in ("loss", "grad_norm", "entropy"):
        assert two[name] == pytest.approx(one[name], abs=1e-5), name


def test_all_replicas_worked(doubled: Any):
    from hpcrl.tracking.journal import JournalReader

    worked = {
        writer for writer, record in JournalReader(doubled.path / "latest" / "journal").read() if record["kind"] != "phase"
    }
    assert {f"{group}.{rank}" for group in ("rollout", "inference", "reward") for rank in (0, 1)} <= worked
    assert worked >= {"trainer.0"}


def test_nothing_is_left_behind(apart: Any, doubled: Any, nothing_left: Any):
    nothing_left(apart)
    nothing_left(doubled)


def test_the_end_is_told_and_shown(launcher: Any, apart: Any):
    assert f"done; see {apart.path / 'report.html'}" in apart.output
    assert (apart.path / "report.html").stat().st_size > 10_000
    assert (apart.path / "curves.png").stat().st_size > 1000
    assert (apart.path / "mlflow.db").exists()
    code, output = launcher.call("status", str(apart.path))
    assert code == 0
    assert "finished" in output.splitlines()[0]
    assert "step 3/3" in output
    rows = {line.split()[0]: line.split()[1] for line in output.splitlines() if "." in line.split(" ")[0]}
    assert rows == {
        "rollout.0": "done",
        "inference.0": "done",
        "trainer.0": "done",
        "vowels.0": "done",
        "reward.0": "done",
        "queue.0": "done",
    }


def test_a_helper_beside_the_recipe_and_a_role_of_its_own_go_with_the_run(apart: Any):
    assert (apart.path / "tiny_helper.py").exists()
    assert "hpcrl_recipe:Vowels" in (apart.path / "recipe.json").read_text()


@pytest.mark.parametrize("window", [2, None])
def test_running_ahead_trains_every_prompt_once_and_never_beyond_the_limit(launcher: Any, tmp_path: Path, window: int | None):
    ended = launcher.in_process(tmp_path / "run", steps=6, window=window, version_lag=2)
    assert ended.code == 0, ended.output
    check_served(ended, 6)
    check_trained_once(ended, 24)
    assert max(step["version_lag_max"] for step in ended.steps()) <= (2 if window is None else 1)


@pytest.mark.parametrize("window", [1, None])
def test_a_dataset_that_ends_leaves_a_short_last_batch(launcher: Any, tmp_path: Path, window: int | None):
    ended = launcher.in_process(tmp_path / "run", steps=9, epochs=1, window=window)
    assert ended.code == 0, ended.output
    assert [step["samples"] for step in ended.steps()] == [16, 16, 8]
    check_trained_once(ended, 10)
    assert launcher.call("status", str(ended.path))[1].splitlines()[0].endswith("finished")


def test_another_seed_is_another_run(launcher: Any, alone: Any, tmp_path: Path):
    ended = launcher.in_process(tmp_path / "run", steps=1, own_role=True, seed=1)
    assert ended.code == 0, ended.output
    assert ended.steps()[0]["reward"] != alone.steps()[0]["reward"]
