from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcrl.engines.embedded.sampler import BatchSampler, draw_uniforms
from hpcrl.engines.embedded.sampling_params import SamplingParams

torch.set_num_threads(1)
CPU = torch.device("cpu")
DRAWS = 20_000


def shares(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    uniforms = torch.from_numpy(draw_uniforms(1, 0, DRAWS))
    tokens, _ = BatchSampler([params] * DRAWS, CPU).sample(logits.expand(DRAWS, -1), uniforms)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / DRAWS


def filtered(probs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    kept = torch.zeros_like(probs)
    before = 0.0
    for rank, index in enumerate(probs.argsort(descending=True).tolist()):
        p = probs[index].item()
        if (params.top_k < 0 or rank < params.top_k) and before <= params.top_p and p >= params.min_p * probs.max().item():
            kept[index] = p
        before += p
    return kept / kept.sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.6),
        SamplingParams(min_p=0.3),
        SamplingParams(temperature=1.5, top_k=9, top_p=0.9, min_p=0.02),
    ],
)
def test_tokens_come_as_often_as_their_probability(params):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 1.5
    expected = filtered(torch.softmax(logits / params.temperature, -1), params)
    seen = shares(logits, params)
    assert torch.all(seen[expected == 0] == 0)
    assert torch.allclose(seen, expected, atol=0.015)


def test_a_vocabulary_of_many_blocks_is_covered_evenly():
    width = 1000
    seen = shares(torch.zeros(width), SamplingParams())
    assert torch.all(seen > 0)
    assert seen.max() < 3 / width


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_a_token_without_probability_is_never_taken(uniform):
    logits = torch.full((1, 700), float("-inf"))
    logits[0, [3, 300, 650]] = 0.0
    tokens, logprobs = BatchSampler([SamplingParams()], CPU).sample(logits, torch.tensor([uniform], dtype=torch.float64))
    assert tokens.item() in (3, 300, 650)
    assert logprobs.item() == pytest.approx(np.log(1 / 3), abs=1e-6)


def test_greedy_and_sampled_rows_live_in_one_batch():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(temperature=0.0), SamplingParams(temperature=2.0), SamplingParams(top_k=1, temperature=3.0)]
    tokens, logprobs = BatchSampler(params, CPU).sample(logits, torch.tensor([0.9, 0.3, 0.9], dtype=torch.float64))
    assert tokens[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
    scaled = logits / torch.tensor([1.0, 2.0, 1.0])[:, None]
    assert torch.allclose(logprobs, scaled.log_softmax(-1).gather(1, tokens[:, None])[:, 0], atol=1e-6)


def test_uniforms_depend_on_seed_and_sample_alone():
    assert np.array_equal(draw_uniforms(5, 1, 4), draw_uniforms(5, 1, 8)[:4])
    assert not np.array_equal(draw_uniforms(5, 1, 4), draw_uniforms(5, 2, 4))
    assert draw_uniforms(-5, 0, 3).shape == (3,)
