from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.packing import join, pack, prepare, unpack
from hpcrl.recipe import Column, DType

TEXT = st.text(st.characters(), max_size=12)  # every code point, lone surrogates too


@st.composite
def blocks(draw):
    dtype = draw(st.sampled_from(get_args(DType)))
    rows = draw(st.integers(1, 12))
    if dtype == "str":
        return Column(name="c", dtype=dtype), draw(st.lists(TEXT, min_size=rows, max_size=rows))
    ragged = draw(st.booleans())
    column = Column(name="c", dtype=dtype, ragged=ragged)
    if not ragged:
        return column, draw(hnp.arrays(dtype, rows))
    return column, [draw(hnp.arrays(dtype, draw(st.integers(0, 5)))) for _ in range(rows)]


def same(got, want) -> bool:
    if isinstance(want, str):
        return got == want
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


@given(blocks(), st.integers(0, 2**62))
def test_every_block_survives_bit_for_bit(block, first):
    column, data = block
    row_ids = np.arange(first, first + len(data), dtype=np.int64)
    packed = pack("s", column, row_ids, data)
    assert packed.dtype == np.uint8
    assert packed.ndim == 1
    ids, got = unpack("s", column, packed)
    assert ids.tolist() == row_ids.tolist()
    assert type(got) is type(data)
    assert len(got) == len(data)
    if isinstance(data, np.ndarray):
        assert same(got, data)
    else:
        assert all(map(same, got, data))


@given(blocks(), st.sampled_from([0, 8, 1, 4]))
def test_it_may_be_packed_into_a_buffer_and_read_where_it_lies(block, offset):
    column, data = block
    row_ids = np.arange(len(data), dtype=np.int64)
    packing = prepare("s", column, row_ids, data)
    buffer = np.full(packing.size + 2 * offset, 0xEE, np.uint8)
    packed = buffer[offset : offset + packing.size]
    packing.into(packed)
    assert packed.tobytes() == pack("s", column, row_ids, data).tobytes()
    assert (buffer[:offset] == 0xEE).all()
    assert (buffer[offset + packing.size :] == 0xEE).all()
    packed.flags.writeable = False
    ids, got = unpack("s", column, packed, copy=False)
    assert ids.tolist() == row_ids.tolist()
    parts, wanted = ([got], [data]) if isinstance(data, np.ndarray) else (got, data)
    assert all(map(same, parts, wanted))
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    assert all(array.flags.aligned for array in arrays)
    if offset % 8 == 0:
        assert all(np.shares_memory(array, buffer) for array in arrays if array.size)
        assert not any(array.flags.writeable for array in arrays)


@given(blocks())
def test_joined_blocks_follow_each_other(block):
    column, data = block
    joined = join(column, [data, data])
    assert len(joined) == 2 * len(data)
    assert all(same(joined[k], data[k % len(data)]) for k in range(len(joined)))


def test_special_floats_keep_their_bits():
    column = Column(name="c", dtype="float32")
    data = np.array([np.nan, -0.0, np.inf, -np.inf, np.float32(1e-45)], np.float32)
    _, got = unpack("s", column, pack("s", column, np.arange(5), data))
    assert got.tobytes() == data.tobytes()


def test_strided_data_is_packed_by_value():
    column = Column(name="c", dtype="int32")
    data = np.arange(10, dtype=np.int32)[::3]
    _, got = unpack("s", column, pack("s", column, np.arange(4), data))
    assert got.tolist() == [0, 3, 6, 9]


def test_what_comes_back_aliases_nothing():
    column = Column(name="c", dtype="int32", ragged=True)
    packed = pack("s", column, np.arange(2), [np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)])
    before = packed.copy()
    ids, got = unpack("s", column, packed)
    ids[:] = 9
    for row in got:
        row[:] = 9
    assert np.array_equal(packed, before)


@pytest.mark.parametrize(
    ("stream", "column"),
    [
        ("other", Column(name="c", dtype="int32")),
        ("s", Column(name="d", dtype="int32")),
        ("s", Column(name="c", dtype="float32")),
        ("s", Column(name="c", dtype="int32", ragged=True)),
    ],
)
def test_bytes_of_another_column_are_refused(stream, column):
    packed = pack("s", Column(name="c", dtype="int32"), np.arange(2), np.arange(2, dtype=np.int32))
    with pytest.raises(DataPlaneError, match="another column or stream"):
        unpack(stream, column, packed)


@pytest.mark.parametrize("keep", [0, 15, 16, 31, 50])
def test_bytes_cut_short_are_refused(keep):
    column = Column(name="c", dtype="int32", ragged=True)
    packed = pack("s", column, np.arange(2), [np.arange(3, dtype=np.int32)] * 2)
    with pytest.raises(DataPlaneError, match="stream 's', column 'c'"):
        unpack("s", column, packed[:keep])


@pytest.mark.parametrize("ends", [[4, 3], [-1, 3]])
def test_rows_that_end_before_they_begin_are_refused(ends):
    column = Column(name="c", dtype="int32", ragged=True)
    packed = pack("s", column, np.arange(2), [np.arange(2, dtype=np.int32), np.arange(1, dtype=np.int32)])
    packed[32:48].view(np.int64)[:] = ends
    with pytest.raises(DataPlaneError, match="are damaged"):
        unpack("s", column, packed)


def test_rows_of_another_type_are_never_cast_in_silence():
    column = Column(name="c", dtype="int32", ragged=True)
    with pytest.raises(TypeError, match="cast"):
        pack("s", column, np.arange(2), [np.zeros(2, np.int32), np.zeros(2, np.float32)])
