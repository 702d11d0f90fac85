import dataclasses

import numpy as np
import pytest

from hpcrl.engines.titan.samples import Sample, SampleError, check_samples, flatten, unflatten

GOOD = Sample(
    prompt_ids=np.array([3, 4], np.int32),
    response_ids=np.array([5, 6, 7], np.int32),
    behaviour_logprobs=np.array([-1.0, -2.0, -3.0], np.float32),
    advantage=0.5,
    group=4,
)


def test_flat_form_gives_the_samples_back():
    other = dataclasses.replace(
        GOOD, response_ids=np.array([1], np.int32), behaviour_logprobs=np.array([-0.5], np.float32), group=-2
    )
    back = unflatten(*flatten([GOOD, other]))
    for sample, copy in zip([GOOD, other], back, strict=True):
        for field in dataclasses.fields(Sample):
            np.testing.assert_array_equal(getattr(sample, field.name), getattr(copy, field.name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": np.zeros(0, np.int32), "behaviour_logprobs": np.zeros(0, np.float32)}, "0 response tokens"),
        ({"prompt_ids": np.zeros(0, np.int32)}, "0 prompt"),
        ({"behaviour_logprobs": np.zeros(2, np.float32)}, "3 response tokens but 2 log-probabilities"),
        ({"prompt_ids": np.array([3, 128], np.int32)}, "a prompt token lies outside the model's vocabulary of 128"),
        ({"response_ids": np.array([-1, 0, 0], np.int32)}, "a response token lies outside"),
        ({"behaviour_logprobs": np.array([0, np.nan, 0], np.float32)}, "log-probability is not finite"),
        ({"advantage": float("inf")}, "its advantage is inf"),
        ({"prompt_ids": np.zeros(30, np.int32)}, "its 33 tokens exceed the model's context of 32"),
        ({"prompt_ids": np.array([3, 5], np.int32)}, "its prompt differs"),
    ],
)
def test_a_bad_sample_is_refused_by_number(change, message):
    with pytest.raises(SampleError, match=f"sample 1 of 2 .*{message}"):
        check_samples([GOOD, dataclasses.replace(GOOD, **change)], vocabulary=128, context=32)
