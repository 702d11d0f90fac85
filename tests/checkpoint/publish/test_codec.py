"""The patch codec: whatever two versions of a tensor are, the patch brings back every bit, or says that it cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.checkpoint.publish import codec, scan
from hpcrl.checkpoint.publish.codec import METHODS, Patch, PatchError, advance, apply, bits_of, compare, encode

KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# Bit patterns of bfloat16, float32 and others that compare oddly as numbers: NaNs with payloads, infinities, both zeros,
# subnormals.
ODD = {
    1: [0x7F, 0xFF, 0x80, 0],
    8: [0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000000, 0, 0x8000000000000000, 1],
    2: [0x7FC0, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x0001],
    4: [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0, 0x80000000, 1],
}


@st.composite
def pairs(draw):
    """Two versions of a tensor: of any size from none, with any share of changes, odd values among them."""
    itemsize = draw(st.sampled_from([2, 2, 4, 4, 1, 8]))
    size = draw(st.sampled_from([0, 1, 2, 3, 255, 256, 257, 3000]) | st.integers(0, 700))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = rng.integers(0, 256**itemsize, size, dtype=KINDS[itemsize], endpoint=False)
    odd = rng.random(size) < draw(st.sampled_from([0.0, 0.3]))
    old[odd] = rng.choice(np.array(ODD[itemsize], KINDS[itemsize]), odd.sum())
    share = draw(st.sampled_from([0.0, 0.004, 0.06, 0.3, 0.5, 0.51, 1.0]))
    where = np.flatnonzero(rng.random(size) < share)
    new = old.copy()
    how = draw(st.sampled_from(["last bits", "anything", "odd"]))
    if how == "last bits":
        new[where] ^= rng.choice(np.array([1, 3, 7], KINDS[itemsize]), where.size)
    elif how == "anything":
        new[where] = rng.integers(0, 256**itemsize, where.size, dtype=KINDS[itemsize], endpoint=False)
    else:
        new[where] = rng.choice(np.array(ODD[itemsize], KINDS[itemsize]), where.size)
    return old, new


@settings(max_examples=150)
@given(pairs())
def test_a_patch_brings_back_every_bit(pair):
    old, new = pair
    patch = encode(old, new)
    target = old.copy()
    apply(patch, target)
    assert target.tobytes() == new.tobytes()
    assert patch.method in METHODS
    assert len(patch.data) <= new.nbytes + 8
    assert (patch.method == "same") == (old.tobytes() == new.tobytes())
    kept = old.copy()
    assert advance(kept, new) == patch
    assert kept.tobytes() == new.tobytes()


@settings(max_examples=60)
@given(pairs(), st.data())
def test_a_patch_that_was_cut_or_changed_is_refused_and_nothing_happens(pair, data):
    old, new = pair
    patch = encode(old, new)
    cut = data.draw(st.integers(0, len(patch.data) - 1), label="cut")
    flipped = bytearray(patch.data)
    flipped[data.draw(st.integers(0, len(flipped) - 1), label="byte")] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    other = data.draw(st.sampled_from([method for method in METHODS if method != patch.method]), label="method")
    for damaged in (
        Patch(patch.method, patch.data[:cut]),
        Patch(patch.method, bytes(flipped)),
        Patch(other, patch.data),
        Patch("guess", patch.data),
    ):
        target = old.copy()
        with pytest.raises(PatchError):
            apply(damaged, target)
        assert target.tobytes() == old.tobytes()


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9, 1.0])
def test_a_patch_of_another_tensor_is_refused_and_nothing_happens(share):
    rng = np.random.default_rng(0)
    old = rng.integers(0, 2**16, 50_000, dtype=np.uint16)
    new = old.copy()
    new[rng.random(50_000) < share] ^= 1
    new[-1] ^= 1
    patch = encode(old, new)
    for size in (0, 1, 49_999):
        target = old[:size].copy()
        with pytest.raises(PatchError):
            apply(patch, target)
        assert np.array_equal(target, old[:size])


def test_another_type_or_size_is_sent_whole():
    old, new = np.arange(64, dtype=np.uint16), np.arange(64, dtype=np.uint32)
    for before in (None, old, new[:63]):
        patch = encode(before, new)
        assert patch.method == "full"
        target = np.zeros(64, np.uint32)
        apply(patch, target)
        assert np.array_equal(target, new)
    with pytest.raises(PatchError, match="256 bytes for a tensor of 128"):
        apply(encode(None, new), old.copy())


def test_a_scalar_and_an_empty_tensor_are_tensors():
    for size in (0, 1):
        old = np.zeros(size, np.uint16)
        new = old + np.uint16(5)
        target = old.copy()
        apply(encode(old, new), target)
        assert np.array_equal(target, new)


def step(size: int, share: float, *, clustered: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Weights before and after a step in which this share moved by a unit in the last place."""
    rng = np.random.default_rng(7)
    old = (rng.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    moved = np.arange(size) < share * size if clustered else rng.random(size) < share
    return old, old + moved.astype(np.uint16)


@pytest.mark.parametrize(("share", "most"), [(0.004, 1 / 250), (0.06, 1 / 25), (0.3, 1 / 6)])
def test_a_patch_is_small_when_little_changed(share, most):
    old, new = step(400_000, share)
    assert len(encode(old, new).data) < most * new.nbytes


@pytest.mark.parametrize("share", [0.0001, 0.004, 0.03, 0.06, 0.11])
@pytest.mark.parametrize("clustered", [False, True])
def test_where_xor_is_not_tried_it_would_gain_next_to_nothing(share, clustered, monkeypatch):
    old, new = step(300_000, share, clustered=clustered)
    chosen = encode(old, new)
    assert chosen.method == "sparse"
    monkeypatch.setattr("hpcrl.checkpoint.publish.codec._FEW", 0.0)
    assert len(chosen.data) < len(encode(old, new).data) * (1.1 if clustered else 1.0) + 64, "64: the frames of two streams"


def test_each_method_is_chosen_where_it_is_the_smallest():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2**16, 100_000, dtype=np.uint16)
    sparse, dense = step(100_000, 0.01), step(100_000, 0.8)
    assert encode(noise, noise.copy()).method == "same"
    assert encode(*sparse).method == "sparse"
    assert encode(*dense).method == "xor"
    assert encode(noise, noise[::-1].copy()).method == "full"


def test_changes_are_found_across_blocks_and_given_up_beyond_half():
    old = np.zeros(1_000_003, np.uint16)
    new = old.copy()
    where = [0, 524_287, 524_288, 999_999, 1_000_002]
    new[where] = 9
    changes = compare(old, new)
    assert changes is not None
    assert changes.where.tolist() == where
    new[:500_002] = 1
    assert compare(old, new) is None


@given(pairs())
def test_without_a_compiler_the_same_is_found(pair):
    kind = np.dtype(np.uint32)
    for found, expected in zip(scan.find(*pair, kind), codec._find_plainly(*pair, kind), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_where_there_is_no_compiler_it_is_said_and_numpy_does_it(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "hpcrl.checkpoint.publish.scan", None)
    codec._finder.cache_clear()
    try:
        old, new = step(100_000, 0.01)
        assert encode(old, new).method == "sparse"
        encode(old, new)
        (said,) = caplog.messages
        assert "by NumPy" in said
    finally:
        codec._finder.cache_clear()


def test_bits_are_the_values_in_place():
    memory = bytearray(8)
    bits_of(memory, 2)[3] = 0x1234
    assert memory == b"\0\0\0\0\0\0\x34\x12"
