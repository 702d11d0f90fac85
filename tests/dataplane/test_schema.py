from __future__ import annotations

import numpy as np
import pytest

from hpcrl.dataplane.interface import SchemaError
from hpcrl.dataplane.schema import check_rows
from hpcrl.recipe import Column, Stream

STREAM = Stream(
    name="s",
    columns=(
        Column(name="n", dtype="int32"),
        Column(name="x", dtype="float32", ragged=True),
        Column(name="t", dtype="str"),
        Column(name="b", dtype="bool"),
    ),
    block_rows=3,
)


def good(rows: int = 2) -> dict:
    return {
        "n": np.zeros(rows, np.int32),
        "x": [np.zeros(k, np.float32) for k in range(rows)],
        "t": ["é"] * rows,
        "b": np.zeros(rows, bool),
    }


def test_rows_that_fit_pass():
    assert check_rows(STREAM, STREAM.columns, good()) == 2
    assert check_rows(STREAM, STREAM.columns[:1], {"n": np.zeros(9, np.int32)}, rows=9) == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": np.zeros(2, np.int64)}, "column 'n': expected a 1-D int32 array, one value a row, got a int64 array of shape"),
        ({"n": np.zeros(2, ">i4")}, "got a >i4 array"),
        ({"n": [0, 0]}, "column 'n'.*got builtins.list"),
        ({"n": np.zeros((2, 1), np.int32)}, r"shape \(2, 1\)"),
        ({"n": np.int32(3)}, "got numpy.int32"),
        ({"x": np.zeros((2, 3), np.float32)}, "column 'x': expected a list of 1-D float32 arrays"),
        ({"x": [np.zeros(1, np.float32), [0.0]]}, "in row 1 builtins.list"),
        ({"x": [np.zeros(1, np.float32), np.zeros((1, 1), np.float32)]}, "in row 1 a float32 array of shape"),
        ({"x": (np.zeros(1, np.float32),) * 2}, "got builtins.tuple"),
        ({"t": np.array(["a", "b"])}, "column 't': expected a list of str"),
        ({"t": ["a", None]}, "in row 1 builtins.NoneType"),
        ({"b": np.zeros(2, np.int8)}, "column 'b': expected a 1-D bool"),
        ({"b": np.zeros(3, bool)}, "equal length"),
        ({"y": np.zeros(2)}, "column 'y' is not one of the expected"),
    ],
)
def test_what_does_not_fit_is_named(change, said):
    with pytest.raises(SchemaError, match=said) as caught:
        check_rows(STREAM, STREAM.columns, {**good(), **change})
    assert "stream 's'" in str(caught.value)


def test_numbers_of_rows():
    with pytest.raises(SchemaError, match="at least one row"):
        check_rows(STREAM, STREAM.columns, good(0))
    with pytest.raises(SchemaError, match="block_rows=3 rows, got 4"):
        check_rows(STREAM, STREAM.columns, good(4))
    with pytest.raises(SchemaError, match="expected 3 rows, those of the batch, got 2"):
        check_rows(STREAM, STREAM.columns, good(2), rows=3)
    with pytest.raises(SchemaError, match="'t' is missing"):
        check_rows(STREAM, STREAM.columns, {name: data for name, data in good().items() if name != "t"})


SAMPLE = Stream(
    name="s",
    columns=(
        Column(name="ids", dtype="int32", ragged=True),
        Column(name="logprobs", dtype="float32", ragged=True, finite=True),
        Column(name="reward", dtype="float32", finite=True),
        Column(name="text", dtype="str"),
    ),
    aligned=(("ids", "logprobs"),),
    max_row_bytes=100,
)


def sample(*lengths: int) -> dict:
    return {
        "ids": [np.zeros(n, np.int32) for n in lengths],
        "logprobs": [np.zeros(n, np.float32) for n in lengths],
        "reward": np.zeros(len(lengths), np.float32),
        "text": ["x" * 10 for _ in lengths],
    }


def test_a_sample_without_tokens_fits():
    assert check_rows(SAMPLE, SAMPLE.columns, sample(2, 0, 10)) == 3
    assert check_rows(SAMPLE, SAMPLE.columns[2:3], {"reward": np.zeros(1, np.float32)}) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"logprobs": [np.zeros(2, np.float32), np.zeros(4, np.float32)]}, "equally long.*in row 1 lengths {'ids': 3, 'logpr"),
        ({"logprobs": [np.zeros(2, np.float32), np.array([0, np.nan, 1], np.float32)]}, "'logprobs'.*nan in row 1, place 1"),
        ({"reward": np.array([0, -np.inf], np.float32)}, "column 'reward': expected finite numbers, got -inf in row 1"),
        ({"text": ["x", "y" * 73]}, "row 1 has 101 bytes.*max_row_bytes=100"),
    ],
)
def test_samples_that_do_not_fit(change, said):
    with pytest.raises(SchemaError, match=said):
        check_rows(SAMPLE, SAMPLE.columns, {**sample(2, 3), **change})
