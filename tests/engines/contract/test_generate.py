"""What is asked for comes back the same from either engine."""

from __future__ import annotations

import numpy as np
import pytest

from hpcrl.engines.completion import Sampling

pytestmark = pytest.mark.slow

WAIT_S = 120.0
# transformers in float32 against the engine in float32.
NEAR = 0.02


def greedy(count: int, **more):
    return Sampling(max_new_tokens=count, temperature=0.0, **more)


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers(engine, weights, prompts):
    groups = engine.client.generate(prompts, greedy(24, ignore_eos=True), seconds=WAIT_S)
    for prompt, (one,) in zip(prompts, groups, strict=True):
        assert len(one.tokens) == 24
        assert weights.reference.would_take(prompt, one.tokens.tolist())
        expected = weights.reference.logprobs(prompt + one.tokens.tolist())[len(prompt) - 1 :]
        assert np.abs(one.logprobs - expected).max() < NEAR
        assert one.finish_reason == "length"
        assert one.versions.tolist() == [0] * 24
        assert one.exact_versions


def test_logprobs_are_those_at_the_temperature(engine, weights, prompts):
    sampling = Sampling(max_new_tokens=16, temperature=0.7, ignore_eos=True)
    for one in engine.client.generate(prompts[:1], sampling, samples=4, seconds=WAIT_S)[0]:
        expected = weights.reference.logprobs(prompts[0] + one.tokens.tolist(), 0.7)[len(prompts[0]) - 1 :]
        assert np.abs(one.logprobs - expected).max() < NEAR


def test_samples_of_a_prompt_differ_and_repeat_with_their_seeds(engine, prompts):
    sampling = Sampling(max_new_tokens=12, ignore_eos=True)
    first, again = (engine.client.generate(prompts[:2], sampling, samples=4, seeds=[1, 2], seconds=WAIT_S) for _ in range(2))
    for group in first:
        assert len({tuple(one.tokens) for one in group}) > 1
    same = all(np.array_equal(a.tokens, b.tokens) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    assert same == engine.seeds


def test_a_stop_token_ends_a_completion_and_is_its_last(engine, prompts):
    made = engine.client.generate(prompts[:1], greedy(16, ignore_eos=True), seconds=WAIT_S)[0][0].tokens.tolist()
    stop = made[7]
    (one,) = engine.client.generate(prompts[:1], greedy(16, stop_token_ids=(stop,)), seconds=WAIT_S)[0]
    assert one.tokens.tolist() == made[: made.index(stop) + 1]
    assert one.finish_reason == "stop"
    assert len(one.logprobs) == len(one.versions) == len(one.tokens)
    (on,) = engine.client.generate(prompts[:1], greedy(16, stop_token_ids=(stop,), ignore_eos=True), seconds=WAIT_S)[0]
    assert on.tokens.tolist() == made


def test_the_context_can_be_filled_to_its_last_token(engine, prompts):
    prompt = (prompts[2] * 64)[: engine.context - 8]
    (one,) = engine.client.generate([prompt], greedy(8, ignore_eos=True), seconds=WAIT_S)[0]
    assert len(one.tokens) == 8
    (one,) = engine.client.generate([prompt[:-1] + prompts[0]], greedy(1), seconds=WAIT_S)[0]
    assert len(one.tokens) == 1


def test_given_tokens_are_scored(engine, weights, prompts):
    sequences = [prompt * 3 for prompt in prompts]
    for sequence, scores in zip(sequences, engine.client.score(sequences, seconds=WAIT_S), strict=True):
        assert scores.dtype == np.float32
        assert np.abs(scores - weights.reference.logprobs(sequence)).max() < NEAR
    (alone,) = engine.client.score(sequences[:1], seconds=WAIT_S)
    assert np.abs(alone - weights.reference.logprobs(sequences[0])).max() < NEAR
    with pytest.raises(ValueError, match="two tokens or more"):
        engine.client.score([[5]], seconds=WAIT_S)
