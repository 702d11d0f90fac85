"""A trainer that lets go of its device between batches learns the same, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.state.saver import About, Saved
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.settings import TrainerSettings, World
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.testing.queue_processes import free_ports

VOCABULARY = 128


def make_batch(seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    prompts = rng.integers(2, VOCABULARY, (2, 5)).astype(np.int32)
    return [
        Sample(
            prompt_ids=prompts[number // 4],
            response_ids=(ids := rng.integers(2, VOCABULARY, rng.integers(2, 9)).astype(np.int32)),
            behaviour_logprobs=rng.normal(-4.8, 0.1, len(ids)).astype(np.float32),
            advantage=float(rng.normal()),
            group=number // 4,
        )
        for number in range(8)
    ]


def settings(model: Path, **changes: Any) -> TrainerSettings:
    return dataclasses.replace(TrainerSettings(model=str(model), compute_dtype="float32", lr=1e-3), **changes)


@pytest.fixture
def make(tiny_model: Path) -> Any:
    made: list[TitanTrainer] = []

    def trainer(**changes: Any) -> TitanTrainer:
        made.append(TitanTrainer(settings(tiny_model, **changes), World()))
        return made[-1]

    yield trainer
    for one in made:
        one.close()


def digest(trainer: TitanTrainer) -> str:
    return hash_tensors({name: tensor.detach().clone() for name, tensor in trainer.hf_tensors()})


def state_digest(trainer: TitanTrainer) -> str:
    return hash_tensors({name: tensor.detach().clone() for name, tensor in trainer.memory.state().items()})


def taken(trainer: TitanTrainer) -> int:
    """Bytes under all that it has on its device."""
    tensors = [*trainer._model.parameters(), *trainer._weights.scratch]
    tensors += [value for state in trainer._optimizer.state.values() for value in state.values()]
    tensors += [parameter for _, parameter in trainer._weights.named]
    storages = [(t.to_local() if hasattr(t, "to_local") else t).untyped_storage() for t in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_the_same_and_nothing_is_left_meanwhile(make, dtype):
    still, moving = make(compute_dtype=dtype), make(compute_dtype=dtype)
    whole = taken(moving)
    for seed in range(3):
        there, released = state_digest(moving), moving.memory.release()
        assert (released.freed, released.left) == (whole, 0)
        assert taken(moving) == 0
        assert state_digest(moving) == there, "its copy on the host"
        assert moving.memory.release() == released, "once more is no error"
        assert moving.memory.resume() == whole
        assert state_digest(moving) == there
        assert still.train_batch(make_batch(seed)).keys() == moving.train_batch(make_batch(seed)).keys()
        assert digest(moving) == digest(still)
        assert state_digest(moving) == state_digest(still)


def test_on_a_cpu_what_numpy_has_seen_is_spoilt_instead_of_freed_and_comes_back_too(make):
    trainer = make()
    for _, parameter in trainer._weights.named:
        parameter.detach().view(torch.uint8).numpy()
    there = state_digest(trainer)
    trainer.memory.release()
    assert all(parameter.isnan().all() for _, parameter in trainer._weights.named)
    assert state_digest(trainer) == there
    trainer.memory.resume()
    assert state_digest(trainer) == there


def test_a_save_can_be_made_while_it_has_nothing_on_its_device(make, tmp_path):
    trainer = make()
    trainer.train_batch(make_batch(0))
    there = state_digest(trainer)
    trainer.memory.release()
    trainer.begin_save(tmp_path / "state", About(run_id="r"))
    # Training goes on while it is written.
    trainer.memory.resume()
    trainer.train_batch(make_batch(1))
    assert isinstance(trainer.finish_save(seconds=120), Saved)
    again = make()
    again.load_state(tmp_path / "state")
    assert state_digest(again) == there
    again.train_batch(make_batch(1))
    assert digest(again) == digest(trainer)


def test_a_save_that_is_under_way_has_its_copy_before_the_memory_goes(make, tmp_path):
    trainer = make()
    trainer.load_state(tmp_path / "state")
    trainer.train_batch(make_batch(0))
    there = state_digest(trainer)
    trainer.begin_save(tmp_path / "state", About(run_id="r"))
    trainer.memory.release()
    assert isinstance(trainer.finish_save(seconds=120), Saved)
    again = make()
    again.load_state(tmp_path / "state")
    assert state_digest(again) == there


def rank_main(model: str, folder: str, rank: int, port: int) -> None:
    """One of two ranks, whose shards go to the host and back before each batch, and while a save is begun."""
    torch.set_num_threads(1)
    world = World(rank=rank, world_size=2, world_port=port)
    trainer = TitanTrainer(settings(Path(model)), world)
    seen = []
    for seed in range(2):
        there, released = state_of_shards(trainer), trainer.memory.release()
        assert taken(trainer) == 0
        assert released.freed > 0
        if seed:
            trainer.begin_save(Path(folder) / "state", About(run_id="r") if rank == 0 else None)
        assert trainer.memory.resume() == released.freed
        assert all(torch.equal(one, other) for one, other in zip(there, state_of_shards(trainer), strict=True))
        seen.append(trainer.train_batch(make_batch(seed) if rank == 0 else None)["loss"])
    ended = trainer.finish_save(seconds=200)
    assert isinstance(ended, Saved), ended
    found = digest(trainer)
    if rank == 0:
        Path(folder, "seen.json").write_text(json.dumps({"losses": seen, "digest": found}))
    trainer.close()


def state_of_shards(trainer: TitanTrainer) -> list[torch.Tensor]:
    state = trainer.memory.state().values()
    return [(tensor.to_local() if hasattr(tensor, "to_local") else tensor).clone() for tensor in state]


@pytest.mark.slow
def test_two_ranks_let_go_of_their_shards(make, tiny_model, tmp_path):
    command = [sys.executable, __file__, str(tiny_model), str(tmp_path)]
    (port,) = free_ports(1)
    ranks = [subprocess.Popen([*command, str(rank), str(port)]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    seen = json.loads((tmp_path / "seen.json").read_text())
    alone = make()
    losses = [alone.train_batch(make_batch(seed))["loss"] for seed in range(2)]
    assert seen["losses"] == pytest.approx(losses, abs=1e-5)
    # The save was begun after the first batch, while no rank had anything on its device.
    again = make()
    assert again.load_state(tmp_path / "state") is not None
    assert again.step == 1
    assert again.train_batch(make_batch(1))["loss"] == pytest.approx(losses[1], abs=1e-5)


if __name__ == "__main__":
    rank_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
