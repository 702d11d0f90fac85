import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.algorithms.normalise import token_weights

lengths = st.lists(st.integers(0, 5000), min_size=1, max_size=200).filter(any)


@given(lengths, st.sampled_from(["token", "sequence"]), st.integers(1, 8))
def test_weights_of_all_tokens_on_all_ranks_sum_to_one(sizes, mode, ranks):
    weights = token_weights(np.array(sizes), mode)
    total = sum(float((weights[rank::ranks] * np.array(sizes)[rank::ranks]).sum()) for rank in range(ranks))
    assert abs(total - 1) < 1e-12


def test_token_mode_weighs_tokens_alike_and_sequence_mode_samples():
    sizes = np.array([1, 3])
    np.testing.assert_allclose(token_weights(sizes, "token"), [1 / 4, 1 / 4])
    np.testing.assert_allclose(token_weights(sizes, "sequence"), [1 / 2, 1 / 6])


def test_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="no response tokens"):
        token_weights(np.array([0, 0]), "token")
    with pytest.raises(ValueError, match="must be 'token' or 'sequence'"):
        token_weights(np.array([1]), "word")
    with pytest.raises(ValueError, match="sample 1 is negative"):
        token_weights(np.array([1, -1]), "token")
