from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError, in_file_order, make_header, owners, read_header

SPECS = st.lists(
    st.builds(
        TensorSpec,
        st.text("abc.", min_size=1, max_size=6),
        st.sampled_from(["float32", "bfloat16"]),
        st.lists(st.integers(0, 50), max_size=3).map(tuple),
    ),
    unique_by=lambda spec: spec.name,
    max_size=30,
)


@given(SPECS, st.integers(1, 9))
def test_every_tensor_has_one_owner_and_the_load_is_even(specs, ranks):
    owner = owners(specs, ranks)
    assert owner == owners(specs[::-1], ranks), "whatever the order"
    assert owner.keys() == {spec.name for spec in specs}
    loads = [sum(spec.nbytes for spec in specs if owner[spec.name] == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max((spec.nbytes for spec in specs), default=0)


@given(SPECS)
def test_a_header_reads_back(specs):
    specs = in_file_order(specs)
    data = make_header(specs, {"format": "pt"}) + bytes(sum(spec.nbytes for spec in specs))
    places, metadata = read_header(data, "it")
    assert metadata == {"format": "pt"}
    assert [place.spec for place in places.values()] == specs
    assert all(place.start % place.spec.itemsize == 0 for place in places.values()), "each is aligned"


def test_the_safetensors_library_reads_ours_and_we_read_its(tmp_path):
    tensors = {"a": torch.randn(3, 5).bfloat16(), "b": torch.randn(7), "s": torch.tensor(2.0), "e": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    data = (tmp_path / "theirs.safetensors").read_bytes()
    places, _ = read_header(data, "it")
    for name, place in places.items():
        assert data[place.start : place.end] == tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes()
    specs = in_file_order(place.spec for place in places.values())
    body = b"".join(tensors[spec.name].reshape(-1).view(torch.uint8).numpy().tobytes() for spec in specs)
    (tmp_path / "ours.safetensors").write_bytes(make_header(specs, {}) + body)
    loaded = load_file(tmp_path / "ours.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_what_is_no_whole_file_is_refused():
    spec = TensorSpec("a", "float32", (4,))
    data = make_header([spec], {}) + np.zeros(4, np.float32).tobytes()
    for broken in (b"", b"12", data[:20], data[:-1], data.replace(b"F32", b"F99"), data.replace(b"[0,16]", b"[0,15]")):
        with pytest.raises(WeightsError, match="it is no whole safetensors file"):
            read_header(broken, "it")
