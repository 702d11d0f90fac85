"""The preflight leaves no trace, and too little memory is explained."""

from __future__ import annotations

import pytest
import torch

from hpcrl.engines.titan.preflight import OutOfMemory, longest_samples


@pytest.mark.parametrize(("longest", "budget", "lengths"), [(40, 100, [40, 40, 20]), (50, 100, [50, 50]), (90, 64, [90])])
def test_samples_of_the_greatest_length_fill_the_budget(longest, budget, lengths):
    samples = longest_samples(longest, budget, 128)
    assert [len(sample) for sample in samples] == lengths
    assert all(sample.response_ids.max() < 128 for sample in samples)


@pytest.mark.parametrize(
    "changes",
    [{}, {"compute_dtype": "bfloat16", "minibatches": 2}, {"attention": "varlen", "activation_checkpointing": "selective"}],
)
def test_a_run_with_a_preflight_equals_one_without_bit_for_bit(changes, tiny_qwen2, trainer_of, random_batch, weights_of):
    with_it, without = (trainer_of(tiny_qwen2, tokens_per_microbatch=96, **changes) for _ in range(2))
    torch.manual_seed(3)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    found = with_it.preflight(200)
    assert torch.equal(torch.rand(2), drawn)
    assert found["tokens"] == 200
    assert with_it.step == 0
    for seed in range(2):
        one, two = with_it.train_batch(random_batch(seed)), without.train_batch(random_batch(seed))
        assert (one["loss"], one["grad_norm"]) == (two["loss"], two["grad_norm"])
        with_it.preflight(60)
    mine, others = weights_of(with_it), weights_of(without)
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_no_sample_is_longer_than_the_model_takes(tiny_model, trainer_of):
    assert trainer_of(tiny_model, tokens_per_microbatch=64).preflight(1_000_000)["tokens"] == 256
    assert trainer_of(tiny_model, tokens_per_microbatch=64, context=96).preflight(0)["tokens"] == 96


def test_too_little_memory_names_the_settings_to_lower(tiny_model, trainer_of, random_batch, monkeypatch):
    def fake_forward(*_):
        raise torch.OutOfMemoryError("tried to allocate 7 GiB")

    trainer = trainer_of(tiny_model, tokens_per_microbatch=512)
    monkeypatch.setattr(trainer._passes, "forward", fake_forward)
    with pytest.raises(OutOfMemory, match=r"preflight at the longest length .*tokens_per_microbatch, 512 .*at most 200 tok"):
        trainer.preflight(200)
    with pytest.raises(OutOfMemory, match=r"step 0 .*activation_checkpointing, 'none', to 'full'.*tried to allocate 7 GiB"):
        trainer.train_batch(random_batch())
