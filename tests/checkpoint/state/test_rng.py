import random

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.state.rng import capture, restore


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal(), torch.rand(2).tolist()


def test_every_generator_goes_on_where_it_was():
    random.gauss(0, 1)
    np.random.normal()
    states = capture()
    expected = draw()
    assert draw() != expected
    restore(states)
    assert draw() == expected


def test_other_bytes_are_refused():
    for data in (b"nothing", b""):
        with pytest.raises(ValueError, match="no random states"):
            restore(data)
