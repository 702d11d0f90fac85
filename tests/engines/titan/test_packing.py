import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.engines.titan.packing import ROW_MULTIPLE, MicroBatch, pack, sees
from hpcrl.engines.titan.samples import Sample


def make(shapes):
    """Samples from (group, prompt length, response length); token ids tell them apart."""
    samples = []
    for number, (group, prompt, response) in enumerate(shapes):
        samples.append(
            Sample(
                prompt_ids=np.arange(prompt, dtype=np.int32) + 1000 * group + 1,
                response_ids=np.arange(response, dtype=np.int32) + 100_000 + 1000 * number,
                behaviour_logprobs=np.zeros(response, np.float32),
                advantage=1.0,
                group=group,
            )
        )
    return samples


@st.composite
def batches(draw):
    prompts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    pairs = draw(st.lists(st.tuples(st.integers(0, len(prompts) - 1), st.integers(1, 20)), min_size=1, max_size=24))
    return make([(group, prompts[group], response) for group, response in pairs])


def seen(micro, flat):
    """Tokens in order of position that a flat position sees, itself included."""
    row, column = divmod(int(flat), micro.tokens.shape[1])
    keys = np.flatnonzero(micro.mask()[row, column])
    assert (np.diff(micro.positions[row, keys]) == 1).all()
    return micro.tokens[row, keys].tolist()


@given(batches(), st.integers(1, 120), st.sampled_from([0.0, 0.003, 0.5]), st.booleans())
def test_every_response_token_is_predicted_from_its_own_prompt_and_past(samples, budget, pair_cost, share):
    found = []
    for micro in pack(samples, range(len(samples)), budget=budget, pair_cost=pair_cost, share=share):
        start = 0
        for index, length in zip(micro.samples, micro.lengths, strict=True):
            whole = [*samples[index].prompt_ids, *samples[index].response_ids]
            assert micro.targets[start : start + length].tolist() == samples[index].response_ids.tolist()
            for offset in range(length):
                assert seen(micro, micro.source[start + offset]) == whole[: len(samples[index].prompt_ids) + offset]
            start += length
            found.append(index)
        assert start == len(micro.targets)
    assert sorted(found) == list(range(len(samples)))


@given(batches(), st.integers(1, 120))
def test_the_budget_holds_unless_one_sample_is_longer(samples, budget):
    for micro in pack(samples, range(len(samples)), budget=budget):
        assert micro.tokens.shape[1] % ROW_MULTIPLE == 0
        assert micro.tokens.size <= budget or len(micro.samples) == 1
        assert micro.mask().any(-1).all()


@given(batches(), st.integers(1, 120))
def test_packing_is_deterministic(samples, budget):
    one, two = (pack(samples, range(len(samples)), budget=budget) for _ in range(2))
    assert [m.samples for m in one] == [m.samples for m in two]
    assert all((a.tokens == b.tokens).all() for a, b in zip(one, two, strict=True))


def test_a_prompt_is_computed_once():
    samples = make([(0, 40, 12)] * 8)
    (micro,) = pack(samples, range(8), budget=4096)
    assert micro.tokens.size == 40 + 8 * 12
    assert (micro.positions[0, 40:52] == np.arange(40, 52)).all()
    assert (micro.source[::12] == 39).all()


def test_long_responses_are_not_put_beside_each_other_where_attention_costs_more():
    samples = make([(0, 100, 1000)] * 4)
    together = pack(samples, range(4), budget=16_384, pair_cost=0.0)
    apart = pack(samples, range(4), budget=16_384, pair_cost=1 / 3000)
    assert together[0].tokens.shape[1] >= 4100
    assert apart[0].tokens.shape[1] < 2200


@given(batches(), st.integers(1, 120))
def test_sequences_of_one_row_let_through_what_the_mask_does(samples, budget):
    found = []
    for micro in pack(samples, range(len(samples)), budget=budget, one_row=True):
        assert len(micro.tokens) == 1
        assert micro.tokens.size <= budget or len(micro.samples) == 1
        made = micro.sequences()
        keys = np.arange(micro.tokens.size) if made.keys is None else made.keys
        assert made.query_starts[-1] == micro.tokens.size
        assert made.key_starts[-1] == len(keys)
        sizes = [np.diff(starts) for starts in (made.query_starts, made.key_starts)]
        assert (made.most_queries, made.most_keys) == (sizes[0].max(), sizes[1].max())
        mask = micro.mask()[0]
        for first, last, start, end in zip(
            made.query_starts, made.query_starts[1:], made.key_starts, made.key_starts[1:], strict=False
        ):
            for query in range(first, last):
                assert np.flatnonzero(mask[query]).tolist() == sorted(keys[start : end - (last - 1 - query)])
        found += micro.samples
    assert sorted(found) == list(range(len(samples)))


def test_rows_of_several_have_no_sequences():
    (micro,) = pack(make([(0, 10, 54), (1, 4, 20), (2, 4, 20)]), range(3), budget=128)
    with pytest.raises(ValueError, match="2 rows"):
        micro.sequences()


def test_a_sample_alone_is_one_sequence_and_its_keys_are_not_copied():
    (micro,) = pack(make([(0, 10, 20), (1, 5, 9)]), range(2), budget=64, one_row=True)
    made = micro.sequences()
    assert made.keys is None
    assert made.query_starts.tolist() == made.key_starts.tolist() == [0, 30, 44, 48]


def test_short_units_share_rows():
    samples = make([(0, 10, 54), (1, 4, 20), (2, 4, 20)])
    (micro,) = pack(samples, range(3), budget=128)
    assert micro.tokens.shape == (2, 64)


@pytest.mark.parametrize("count", [1, 3])
def test_a_sample_longer_than_the_budget_goes_alone(count):
    samples = make([(0, 10, 90)] * count)
    micros = pack(samples, range(count), budget=50)
    assert [m.samples for m in micros] == [(index,) for index in range(count)]


def test_the_empty_micro_batch_has_no_targets_and_a_usable_mask():
    micro = MicroBatch.empty()
    assert len(micro.targets) == 0
    assert micro.mask().all()


def test_the_mask_is_the_same_made_by_torch():
    (micro,) = pack(make([(0, 3, 4), (0, 3, 2), (1, 5, 6)]), range(3), budget=64)
    segment, parent = torch.from_numpy(micro.segment), torch.from_numpy(micro.parent)
    causal = torch.ones(segment.shape[1], segment.shape[1], dtype=torch.bool).tril()
    np.testing.assert_array_equal(sees(segment, parent, causal).numpy(), micro.mask())
