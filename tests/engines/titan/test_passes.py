"""Attention by sequence, torch.compile and activation checkpointing: the same figures and weights in every way."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from hpcrl.engines.titan import compat
from hpcrl.engines.titan.passes import mean_gaps
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.run.errors import CheckFailed


def assert_same_training(one, two, batches, weights_of):
    for samples in batches:
        mine, other = one.train_batch(samples), two.train_batch(samples)
        for name in ("loss", "kl", "entropy", "logprob_gap_mean", "logprob_gap_max", "clip_fraction"):
            assert mine[name] == pytest.approx(other[name], abs=1e-5), name
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert mine["tokens"] == other["tokens"]
    held, others = weights_of(one), weights_of(two)
    for name, tensor in held.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
@pytest.mark.parametrize("budget", [24, 4096])
def test_attention_by_sequence_trains_like_a_mask(family, budget, request, trainer_of, random_batch, weights_of):
    path = request.getfixturevalue(family)
    kind = {"max_grad_norm": None, "minibatches": 2, "tokens_per_microbatch": budget}
    masked, varlen = (trainer_of(path, attention=attention, **kind) for attention in ("masked", "varlen"))
    assert_same_training(masked, varlen, [random_batch(0), random_batch(1)], weights_of)


def test_attention_by_sequence_needs_no_padding_to_the_longest(tiny_model, trainer_of, random_batch):
    samples = random_batch(groups=6, longest=40)
    packed = [
        trainer_of(tiny_model, attention=attention, tokens_per_microbatch=256).train_batch(samples)["tokens_packed"]
        for attention in ("masked", "varlen")
    ]
    assert packed[1] <= packed[0]
    kept = [sample for sample in samples if sample.advantage]
    assert packed[1] < sum(len(sample) for sample in kept), "prompts are shared"


@pytest.mark.parametrize(
    ("changes", "head_dim", "said"),
    [
        ({"compute_dtype": "float32"}, 64, "it computes in bfloat16, not in float32"),
        ({}, 12, "multiples of 8 up to 256, not of 12"),
    ],
)
def test_where_flash_attention_cannot_be_had_the_reason_is_told(changes, head_dim, said):
    compat.enable("cpu")
    from hpcrl.engines.titan.attention import goes_by_sequence

    gpu = torch.device("cuda")
    assert not goes_by_sequence(TrainerSettings(model="m", **changes), gpu, head_dim)
    with pytest.raises(CheckFailed, match=said):
        goes_by_sequence(TrainerSettings(model="m", attention="varlen", **changes), gpu, head_dim)


def test_a_gpu_gets_few_large_chunks_of_logits():
    compat.enable("cpu")
    from hpcrl.engines.titan.head import default_chunk

    assert default_chunk(50_000, torch.device("cpu")) == 512
    assert 5000 < default_chunk(50_000, torch.device("cuda")) < 6000
    assert default_chunk(10_000_000, torch.device("cuda")) == 512


@pytest.mark.slow
def test_compiled_layers_train_like_plain_ones(tiny_qwen2, tmp_path, trainer_of, random_batch, weights_of, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    path = tmp_path / "model"
    shutil.copytree(tiny_qwen2, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    plain = trainer_of(path, activation_checkpointing="full")
    compiled = trainer_of(path, activation_checkpointing="full", compile=True)
    # Of another size, for which it is compiled once more, and for good.
    assert_same_training(plain, compiled, [random_batch(0), random_batch(1, groups=5)], weights_of)


def test_compile_without_a_compiler_is_refused(tiny_model, trainer_of, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CheckFailed, match=r"neither g\+\+ nor clang\+\+; set compile to false"):
        trainer_of(tiny_model, compile=True)


def test_sequences_on_a_cpu_are_not_compiled(tiny_model, trainer_of):
    with pytest.raises(CheckFailed, match="attention 'varlen' cannot be had: on a CPU it cannot be compiled"):
        trainer_of(tiny_model, compile=True, attention="varlen")


def test_small_steps_add_up_in_float32_under_bfloat16(tiny_qwen2, trainer_of, random_batch, weights_of):
    kind = {"compute_dtype": "bfloat16", "lr": 1e-5, "publish_dtype": "float32"}
    trainer = trainer_of(tiny_qwen2, **kind)
    before = weights_of(trainer)
    for seed in range(2):
        trainer.train_batch(random_batch(seed))
    after = weights_of(trainer)
    name = "model.layers.0.mlp.up_proj.weight"
    assert (after[name] != before[name]).float().mean() > 0.9
    assert (after[name].bfloat16() != before[name].bfloat16()).float().mean() < 0.5


def test_bfloat16_trains_about_like_float32(tiny_qwen2, trainer_of, random_batch):
    exact, rounded = (
        trainer_of(tiny_qwen2, compute_dtype=dtype).train_batch(random_batch()) for dtype in ("float32", "bfloat16")
    )
    assert rounded["loss"] == pytest.approx(exact["loss"], abs=2e-3)
    assert rounded["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.05)
    assert rounded["entropy"] == pytest.approx(exact["entropy"], rel=0.01)


def test_samples_far_from_the_rollout_policy_count_for_nothing(tiny_model, trainer_of, random_batch, weights_of):
    samples = random_batch()
    near = trainer_of(tiny_model).logprobs(samples)
    samples = [dataclasses.replace(s, behaviour_logprobs=lp) for s, lp in zip(samples, near, strict=True)]
    far = [dataclasses.replace(s, behaviour_logprobs=s.behaviour_logprobs - 2.0 * (i == 1)) for i, s in enumerate(samples)]
    masked = trainer_of(tiny_model, gap_mask=1.0, max_grad_norm=None)
    figures = masked.train_batch(far)
    assert figures["samples_masked"] == 1
    assert figures["logprob_gap_max"] == pytest.approx(2.0, abs=1e-4)
    # As if its gradient were 0, with the others' weights unchanged.
    other = trainer_of(tiny_model, max_grad_norm=None)
    silent = [dataclasses.replace(s, advantage=1e-30) if i == 1 else s for i, s in enumerate(samples)]
    assert other.train_batch(silent)["grad_norm"] == pytest.approx(figures["grad_norm"], rel=1e-4)
    assert trainer_of(tiny_model, gap_mask=3.0).train_batch(far)["samples_masked"] == 0


def test_mean_gaps_are_per_sample(random_batch):
    samples = random_batch(groups=1)
    scored = {i: torch.from_numpy(samples[i].behaviour_logprobs + 0.5 * i) for i in (1, 3)}
    np.testing.assert_allclose(mean_gaps(scored, samples), [0, 0.5, 0, 1.5], atol=1e-6)
