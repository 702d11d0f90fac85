from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.engines.embedded.decode import Cohort
from hpcrl.engines.embedded.errors import RequestError
from hpcrl.engines.embedded.intake import Intake
from hpcrl.engines.embedded.model import LoadedModel
from hpcrl.engines.embedded.sequence import Sequence
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.run.errors import CheckFailed

torch.set_num_threads(1)

PROMPTS = [[5, 9, 30, 41, 7], [60, 61, 8], [5, 9, 30, 41, 7, 99, 100, 101, 20]]


def load(folder: Path, **changes) -> LoadedModel:
    return LoadedModel(EngineSettings(model_path=folder, **changes))


def decode(model: LoadedModel, prompts, params, *, logprob_start_len=-1, chunk=3) -> list[Sequence]:
    listed = params if isinstance(params, list) else [params] * len(prompts)
    intake = Intake(model.max_context, model.vocab_size, 0)
    sequences, _ = intake.sequences(prompts, listed, None, True, logprob_start_len)
    cohort = Cohort(model, sequences, prefill_tokens=4096)
    cohort.start("0")
    while not cohort.done:
        cohort.run(chunk, "0")
        cohort.drop_ended()
    return sequences


def reference_logprobs(model: LoadedModel, prompt, tokens, temperature=1.0) -> torch.Tensor:
    with torch.no_grad():
        logits = model.module(torch.tensor([prompt + tokens])).logits[0].float() / temperature
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
def test_greedy_tokens_equal_those_of_generate_for_prompts_of_different_lengths(family, request):
    model = load(request.getfixturevalue(family))
    ours = decode(model, PROMPTS, {"temperature": 0, "max_new_tokens": 20})
    for prompt, sequence in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([prompt])
        full = model.module.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, pad_token_id=1
        )
        assert sequence.tokens == full[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_softmax_at_the_temperature(tiny_model, temperature):
    model = load(tiny_model)
    for sequence in decode(model, PROMPTS, {"temperature": temperature, "max_new_tokens": 20, "n": 3, "ignore_eos": True}):
        assert len(sequence.tokens) == 20
        expected = reference_logprobs(model, sequence.prompt, sequence.tokens, temperature)
        assert torch.allclose(torch.tensor(sequence.logprobs), expected, atol=1e-4)


def test_prompt_scores_start_where_asked(tiny_model):
    model = load(tiny_model)
    for start in (0, 2):
        for sequence in decode(model, PROMPTS, {"max_new_tokens": 0}, logprob_start_len=start):
            assert sequence.tokens == []
            assert sequence.finish_reason == {"type": "length", "length": 0}
            assert sequence.prompt_logprobs is not None
            assert sequence.prompt_logprobs[0] is None
            expected = reference_logprobs(model, sequence.prompt[:1], sequence.prompt[1:])[start:]
            assert torch.allclose(torch.tensor(sequence.prompt_logprobs[1:]), expected, atol=1e-4)


def test_samples_of_a_prompt_share_one_prefill(tiny_model, monkeypatch):
    model = load(tiny_model)
    rows = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda ids, *a, **k: rows.append(tuple(ids.shape)) or forward(ids, *a, **k))
    sequences = decode(model, [PROMPTS[0], PROMPTS[1], PROMPTS[0]], {"max_new_tokens": 2, "n": 4, "ignore_eos": True})
    assert rows == [(2, 5), (12, 1)]
    assert [s.cached_tokens for s in sequences] == [0, 5, 5, 5, 0, 3, 3, 3, 5, 5, 5, 5]
    assert len({tuple(s.tokens) for s in sequences if s.prompt == PROMPTS[0]}) > 1


def test_ended_rows_leave_the_batch_and_the_others_do_not_notice(tiny_model, monkeypatch):
    model = load(tiny_model)
    rows = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda ids, *a, **k: rows.append(len(ids)) or forward(ids, *a, **k))
    params = [{"max_new_tokens": count, "temperature": 0, "ignore_eos": True} for count in (2, 30, 4)]
    sequences = decode(model, PROMPTS, params, chunk=2)
    assert [len(s.tokens) for s in sequences] == [2, 30, 4]
    assert rows[-1] == 1
    alone = decode(model, [PROMPTS[1]], params[1])
    assert sequences[1].tokens == alone[0].tokens
    assert np.allclose(sequences[1].logprobs, alone[0].logprobs, atol=1e-4)


def test_the_cache_grows_past_its_first_room(tiny_model):
    model = load(tiny_model)
    (sequence,) = decode(model, [PROMPTS[1]], {"max_new_tokens": 200, "ignore_eos": True})
    expected = reference_logprobs(model, sequence.prompt, sequence.tokens)
    assert torch.allclose(torch.tensor(sequence.logprobs), expected, atol=1e-4)


def test_prefill_in_small_batches_changes_nothing(tiny_model):
    model = load(tiny_model)
    intake = Intake(256, 128, 0)
    sequences, _ = intake.sequences(PROMPTS, [{"temperature": 0, "max_new_tokens": 8}] * 3, None, True, -1)
    cohort = Cohort(model, sequences, prefill_tokens=1)
    cohort.start("0")
    while not cohort.done:
        cohort.run(4, "0")
    whole = decode(model, PROMPTS, {"temperature": 0, "max_new_tokens": 8})
    assert [s.tokens for s in sequences] == [s.tokens for s in whole]


def test_stop_tokens_end_a_completion_and_stay_in_it(tiny_model):
    model = load(tiny_model)
    (free,) = decode(model, [PROMPTS[0]], {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True})
    stop = free.tokens[3]
    (ended,) = decode(model, [PROMPTS[0]], {"temperature": 0, "max_new_tokens": 10, "stop_token_ids": [stop]})
    assert ended.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert ended.finish_reason == {"type": "stop", "matched": stop}
    params = {"temperature": 0, "max_new_tokens": 10, "stop_token_ids": [stop], "ignore_eos": True}
    assert decode(model, [PROMPTS[0]], params)[0].tokens == free.tokens


def test_the_global_random_state_is_left_alone(tiny_model):
    model = load(tiny_model)
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    decode(model, PROMPTS, {"max_new_tokens": 5, "sampling_seed": 4, "top_p": 0.9})
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_a_seed_gives_the_same_tokens_and_samples_of_one_seed_differ(tiny_model):
    model = load(tiny_model)
    params = {"max_new_tokens": 12, "sampling_seed": 7, "n": 2, "ignore_eos": True}
    first = decode(model, PROMPTS, params)
    decode(model, PROMPTS[:1], {"max_new_tokens": 3})
    again = decode(model, PROMPTS, params)
    assert [s.tokens for s in first] == [s.tokens for s in again]
    assert [s.logprobs for s in first] == [s.logprobs for s in again]
    assert first[0].tokens != first[1].tokens


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "cannot be empty"),
        (list(range(2, 100)) * 3, {}, "longer than the model's context length"),
        ([5] * 250, {"max_new_tokens": 10}, "maximum context length"),
        ([5, 128], {}, "input_ids must be in"),
        ([5], {"max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ([5], {"max_new_token": 4}, "did you mean 'max_new_tokens'"),
        ([5], {"temperature": -1}, "temperature"),
        ([5], {"temperature": "hot"}, "temperature"),
        ([5], {"top_p": 0}, "top_p"),
        ([5], {"top_k": 0}, "top_k"),
        ([5], {"min_p": 2}, "min_p"),
        ([5], {"regex": "a+"}, "not supported"),
        ([5], {"sampling_seed": "x"}, "sampling_seed"),
        ([5], {"n": 0}, "n must be"),
    ],
)
def test_bad_requests_are_refused_in_words(prompt, params, words):
    with pytest.raises(RequestError, match=words) as caught:
        Intake(256, 128, 0).sequences([prompt], [params], None, False, -1)
    assert caught.value.status == 400


def test_what_asks_for_nothing_is_accepted():
    sequences, seeded = Intake(256, 128, 0).sequences(
        [[5]],
        [{"stop": None, "repetition_penalty": 1.0, "max_new_tokens": None, "top_k": -1, "temperature": None}],
        None,
        False,
        -1,
    )
    assert sequences[0].limit == 255
    assert not seeded


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckFailed, match=r"no config\.json"):
        load(tmp_path)


def test_a_context_beyond_the_models_own_is_refused(tiny_model):
    with pytest.raises(CheckFailed, match="beyond the 256 positions"):
        load(tiny_model, max_context=512)
