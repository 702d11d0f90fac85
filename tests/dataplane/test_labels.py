from __future__ import annotations

import numpy as np

from hpcrl.dataplane.labels import labels_of
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.recipe import Column, Stream
from hpcrl.roles.samples import CREATED, samples_stream

COLUMNS = (
    Column(name="p", dtype="int64"),
    Column(name="v", dtype="int32", ragged=True),
    Column(name="w", dtype="int32"),
    Column(name="a", dtype="int32", ragged=True),
)
DATA = {
    "p": np.array([7, 8], np.int64),
    "v": [np.array([3, 5, 4], np.int32), np.zeros(0, np.int32)],
    "w": np.array([1, 2], np.int32),
    "a": [np.zeros(2, np.int32), np.zeros(0, np.int32)],
}


def test_labels_are_of_the_columns_that_the_stream_names():
    stream = Stream(name="s", columns=COLUMNS, prompt="p", version="v", tokens=("v", "a"))
    assert labels_of(stream, DATA) == Labels([7, 8], [3, -1], [5, -1], [5, 0])
    assert labels_of(Stream(name="s", columns=COLUMNS, version="w"), DATA) == Labels([], [1, 2], [1, 2], [])
    assert labels_of(Stream(name="s", columns=COLUMNS), DATA) == Labels()


def test_samples_have_all_labels():
    stream = samples_stream(samples_per_prompt=2)
    data = {
        c.name: [np.arange(3, dtype=c.dtype)] if c.ragged else ["text"] if c.dtype == "str" else np.array([9], c.dtype)
        for c in CREATED
    }
    assert labels_of(stream, data) == Labels([9], [0], [2], [6])
