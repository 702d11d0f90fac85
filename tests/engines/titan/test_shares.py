import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.shares import shares

shapes = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 50)), max_size=40)


def make(pairs):
    return [
        Sample(
            prompt_ids=np.arange(5, dtype=np.int32),
            response_ids=np.zeros(response, np.int32),
            behaviour_logprobs=np.zeros(response, np.float32),
            advantage=1.0,
            group=group,
        )
        for group, response in pairs
    ]


@given(shapes, st.integers(1, 9))
def test_every_sample_goes_to_exactly_one_part(pairs, parts):
    result = shares(make(pairs), range(len(pairs)), parts)
    assert len(result) == parts
    assert sorted(index for part in result for index in part) == list(range(len(pairs)))
    assert result == shares(make(pairs), range(len(pairs)), parts)


@given(shapes, st.integers(1, 4))
def test_groups_stay_together_when_there_are_enough_of_them(pairs, parts):
    groups = {group for group, _ in pairs}
    if len(groups) >= parts:
        result = shares(make(pairs), range(len(pairs)), parts)
        owners = [{pairs[index][0] for index in part} for part in result]
        assert sum(map(len, owners)) == len(groups)


def test_no_part_is_idle_while_samples_are_left_to_split():
    assert all(shares(make([(0, 10)] * 8), range(8), 4))


def test_lengths_are_balanced():
    result = shares(make([(0, 90), (1, 30), (2, 30), (3, 30)]), range(4), 2)
    assert result == [[0], [1, 2, 3]]
