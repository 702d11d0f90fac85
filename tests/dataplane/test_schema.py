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
