import json
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.weights import Published, WeightsError, find, publish, retain, to_drop, versions


@pytest.fixture
def tensors(tiny_model):
    return {name: tensor.bfloat16() for name, tensor in load_file(tiny_model / "model.safetensors").items()}


@pytest.mark.parametrize("durable", [True, False])
def test_a_published_version_loads_in_transformers_with_the_same_hash(tmp_path, tiny_model, tensors, durable):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = publish(tmp_path, 3, tensors, tiny_model, durable=durable)
    model, info = AutoModelForCausalLM.from_pretrained(done.path, dtype="auto", output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.bfloat16
    assert hash_tensors(model.state_dict()) == done.hash == hash_tensors(tensors)
    assert AutoTokenizer.from_pretrained(done.path).chat_template
    assert find(tmp_path, 3) == done == Published(3, tmp_path / "v000003", done.hash, "bfloat16")
    assert sorted(os.listdir(tmp_path)) == ["v000003"]


def test_large_weights_are_split_and_still_load(tmp_path, tiny_model, tensors):
    from transformers import AutoModelForCausalLM

    done = publish(tmp_path, 1, tensors, tiny_model, shard_bytes=40_000)
    assert len(list(done.path.glob("model-*.safetensors"))) > 1
    model = AutoModelForCausalLM.from_pretrained(done.path, dtype="auto")
    assert hash_tensors(model.state_dict()) == done.hash


def test_base_files_are_linked_and_never_changed(tmp_path, tiny_model, tensors):
    before = (tiny_model / "config.json").read_text()
    done = publish(tmp_path, 1, tensors, tiny_model)
    assert (done.path / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()
    assert (done.path / "generation_config.json").exists()
    assert json.loads((done.path / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tiny_model / "config.json").read_text() == before


def test_publishing_a_version_again_replaces_it(tmp_path, tiny_model, tensors):
    first = publish(tmp_path, 1, tensors, tiny_model)
    tensors["model.norm.weight"] += 1
    second = publish(tmp_path, 1, tensors, tiny_model)
    assert first.hash != second.hash == find(tmp_path, 1).hash
    assert os.listdir(tmp_path) == ["v000001"]


def test_a_failed_publish_leaves_nothing_behind(tmp_path, tiny_model, tensors):
    with pytest.raises(WeightsError, match=r"version 1 cannot be published to .*config\.json"):
        publish(tmp_path / "weights", 1, tensors, tmp_path)
    with pytest.raises(WeightsError, match="no tensors"):
        publish(tmp_path / "weights", 1, {}, tiny_model)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(WeightsError, match="version 1"):
        publish(blocked, 1, tensors, tiny_model)
    assert versions(tmp_path / "weights") == []
    assert not any((tmp_path / "weights").glob(".v*"))


def test_an_unfinished_version_is_no_version(tmp_path, tiny_model, tensors):
    publish(tmp_path, 1, tensors, tiny_model)
    (tmp_path / ".v000002.abc").mkdir()
    (tmp_path / "v000003").mkdir()
    assert versions(tmp_path) == [1]
    with pytest.raises(WeightsError, match="no published version 3"):
        find(tmp_path, 3)


def test_retention_keeps_the_newest_and_the_protected(tmp_path, tiny_model, tensors):
    small = {"model.norm.weight": tensors["model.norm.weight"]}
    for version in range(5):
        publish(tmp_path, version, small, tiny_model, durable=False)
    assert retain(tmp_path, keep_last=2, protect={1}) == [0, 2]
    assert sorted(os.listdir(tmp_path)) == ["v000001", "v000003", "v000004"]


@settings(deadline=None)
@given(st.sets(st.integers(0, 50)), st.integers(0, 5), st.none() | st.integers(1, 10), st.sets(st.integers(0, 50)))
def test_what_is_dropped_is_old_and_wanted_by_nobody(held, keep_last, keep_every, protect):
    dropped = to_drop(sorted(held), keep_last=keep_last, keep_every=keep_every, protect=protect)
    kept = held - set(dropped)
    assert set(dropped) <= held - protect
    assert len(kept) >= min(keep_last, len(held))
    assert not dropped or keep_last == 0 or max(dropped) < max(kept)
    assert not any(keep_every and version % keep_every == 0 for version in dropped)
