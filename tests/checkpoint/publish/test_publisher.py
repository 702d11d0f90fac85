"""Publishing in one process and by many ranks: what is written, when a base comes, and what a failure leaves."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.publish.versions import read_chain, read_version, unfinished, versions
from hpcrl.run.failpoints import armed


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "weights"


@contextmanager
def brought(folder, version, tmp_path):
    """Where a node has put a version together."""
    node = NodeWeights(tmp_path / "node", folder, wait_s=30)
    with node.bring(version, read_version(folder, version).hash) as loaded:
        assert loaded.version == version
        yield loaded.path


@pytest.mark.parametrize("durable", [True, False])
def test_a_base_loads_in_transformers_with_the_same_hash(folder, policy, tiny_model, durable, damage):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = policy.publisher(folder).publish(3, policy.tensors.items(), durable=durable)
    path = folder / "v000003"
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype="auto", output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.bfloat16
    assert hash_tensors(model.state_dict()) == done.hash == hash_tensors(policy.tensors)
    assert AutoTokenizer.from_pretrained(path).chat_template
    assert (path / "tokenizer.json").read_bytes() == (tiny_model / "tokenizer.json").read_bytes()
    assert json.loads((path / "config.json").read_text())["dtype"] == "bfloat16"
    assert "dtype" not in json.loads((tiny_model / "config.json").read_text()) or done.dtype == "bfloat16"
    assert read_version(folder, 3) == done
    assert done.kind == "base"
    assert {record.name for record in done.files} == set(os.listdir(path)) - {"version.json"}
    assert damage(folder) == []


def test_later_versions_are_patches_that_give_every_bit(folder, policy, tmp_path, damage):
    publisher = policy.publisher(folder)
    base = publisher.publish(0, policy.tensors.items())
    expected = {}
    for version in range(1, 5):
        expected[version] = policy.step()
        done = publisher.publish(version, expected[version].items())
        assert done.hash == hash_tensors(expected[version])
        assert done.kind == "patch"
        assert os.listdir(folder / f"v{version:06d}") != []
        assert done.size < base.size / 10
    for version, tensors in expected.items():
        with brought(folder, version, tmp_path) as path:
            loaded = load_file(path / "model.safetensors")
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[n].view(torch.int16), tensors[n].view(torch.int16)) for n in tensors)
    assert damage(folder) == []


def test_what_did_not_change_costs_nothing(folder, policy):
    publisher = policy.publisher(folder)
    first = publisher.publish(0, policy.tensors.items())
    again = publisher.publish(1, policy.tensors.items())
    assert again.hash == first.hash
    assert again.kind == "patch"
    assert again.size < 3000


def test_a_base_comes_every_so_often_and_on_request(folder, policy):
    publisher = policy.publisher(folder, base_every=3)
    kinds = [publisher.publish(v, policy.step().items(), whole=v == 4).kind for v in range(9)]
    assert kinds == ["base", "patch", "patch", "base", "base", "patch", "patch", "base", "patch"]
    assert [link.version for link in read_chain(folder, 6)] == [4, 5, 6]


def test_patches_that_are_too_large_are_given_up_for_longer_and_longer(folder, policy, monkeypatch):
    publisher, tried = policy.publisher(folder), []
    original = publisher._owned.take

    def take(tensors, *, patching):
        tried.append(patching)
        return original(tensors, patching=patching)

    monkeypatch.setattr(publisher._owned, "take", take)
    generator = torch.Generator().manual_seed(1)
    for version in range(12):
        for tensor in policy.tensors.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        assert publisher.publish(version, policy.tensors.items()).kind == "base"
    assert tried == [False, True, False, True, *[False] * 3, True, *[False] * 4]


def test_patches_that_outweigh_their_base_end_the_chain(folder, policy):
    publisher = policy.publisher(folder, base_every=100)
    sizes, kinds = [], []
    for version in range(12):
        done = publisher.publish(version, policy.step(0.5).items())
        kinds.append(done.kind)
        sizes.append(done.size)
    second = kinds.index("base", 1)
    tensors = sum(spec.nbytes for spec in policy.specs)
    assert sum(sizes[1 : second - 1]) <= tensors < sum(sizes[1:second])


def test_a_version_of_the_same_number_is_replaced(folder, policy):
    publisher = policy.publisher(folder)
    publisher.publish(0, policy.tensors.items())
    first = publisher.publish(1, policy.step().items())
    second = publisher.publish(1, policy.step().items(), whole=True, durable=True)
    assert first.hash != second.hash == read_version(folder, 1).hash
    assert sorted(os.listdir(folder)) == ["v000000", "v000001"]
    assert publisher.publish(2, policy.step().items()).previous_hash == second.hash


def test_after_a_resume_a_base_comes_first_and_newer_versions_go(folder, policy, damage):
    publisher = policy.publisher(folder)
    for version in range(6):
        publisher.publish(version, policy.step().items())
    (folder / ".v000001.0123").mkdir()
    (folder / "v000006").mkdir()
    resumed = policy.publisher(folder, attempt=2)
    done = resumed.publish(3, policy.step().items())
    assert (done.kind, done.attempt) == ("base", 2)
    assert versions(folder) == [0, 1, 2, 3] == resumed.known
    assert unfinished(folder) == []
    assert resumed.publish(4, policy.step().items()).kind == "patch"
    assert damage(folder) == []


def test_retention_keeps_what_the_newest_is_built_on(folder, policy, damage):
    publisher = policy.publisher(folder, base_every=3)
    for version in range(8):
        publisher.publish(version, policy.step().items())
        publisher.retain(keep_last=1)
    assert versions(folder) == [6, 7]
    assert publisher.retain(keep_last=1, protect=[3]) == []
    assert damage(folder) == []


def test_a_failed_publish_says_who_and_where_and_the_next_is_a_base(folder, policy, tmp_path, damage):
    publisher = policy.publisher(folder)
    publisher.publish(0, policy.tensors.items())
    with armed("disk.write~patch=errno:ENOSPC"), pytest.raises(WeightsError) as caught:
        publisher.publish(1, policy.step().items())
    text = str(caught.value)
    assert "version 1 cannot be published" in text
    assert "trainer rank 0 on " in text
    assert "patch.safetensors" in text
    assert "the disk is full" in text
    assert versions(folder) == [0]
    done = publisher.publish(2, policy.step().items())
    assert done.kind == "base"
    assert done.hash == hash_tensors(policy.tensors)
    assert damage(folder) == []


def test_what_cannot_be_published_is_refused(tmp_path, policy, tiny_model):
    with pytest.raises(WeightsError, match="the model has no tensors"):
        Publisher(tmp_path / "w", tiny_model, [], attempt=1)
    with pytest.raises(WeightsError, match=r"config\.json"):
        Publisher(tmp_path / "w", tmp_path, policy.specs, attempt=1).publish(0, policy.tensors.items())
    name = "model.norm.weight"
    for tensors in (
        {n: t for n, t in policy.tensors.items() if n != name},
        policy.tensors | {name: policy.tensors[name].float()},
        policy.tensors | {name: policy.tensors[name][:-1]},
    ):
        with pytest.raises(WeightsError, match=r"not those of the model: .*model\.norm\.weight"):
            policy.publisher(tmp_path / "w").publish(0, tensors.items())
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(WeightsError, match="version 0 cannot be published"):
        policy.publisher(blocked).publish(0, policy.tensors.items())
    assert versions(tmp_path / "w") == []


def test_an_unfinished_version_is_no_version(folder, policy):
    policy.publisher(folder).publish(1, policy.tensors.items())
    (folder / ".v000002.abc").mkdir()
    (folder / "v000003").mkdir()
    assert versions(folder) == [1]
    assert [path.name for path in unfinished(folder)] == [".v000002.abc", "v000003"]
    with pytest.raises(WeightsError, match=r"no whole policy version in .*v000003"):
        read_version(folder, 3)


def test_one_flipped_bit_of_any_file_is_named(folder, policy, flip, damage):
    publisher = policy.publisher(folder)
    publisher.publish(0, policy.tensors.items())
    publisher.publish(1, policy.step().items())
    for path in sorted(folder.glob("v*/*")):
        data = path.read_bytes()
        flip(path)
        assert any(path.name in problem for problem in damage(folder)), path
        path.write_bytes(data)
    assert damage(folder) == []


def test_a_version_that_was_built_on_another_is_found(folder, policy, tmp_path):
    publisher = policy.publisher(folder)
    publisher.publish(0, policy.tensors.items())
    publisher.publish(1, policy.step().items())
    policy.step()
    (folder / "v000000").rename(tmp_path / "aside")
    other = policy.publisher(tmp_path / "other")
    other.publish(0, policy.tensors.items())
    (tmp_path / "other" / "v000000").rename(folder / "v000000")
    with pytest.raises(WeightsError, match=r"version 1 in .* is a patch on version 0 of hash"):
        read_chain(folder, 1)


class Ranks:
    """Threads that stand for the ranks of a trainer."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size)
        self._said = [b""] * size

    def exchange(self, rank):
        def tell(said):
            self._said[rank] = said
            self._barrier.wait(30)
            heard = list(self._said)
            self._barrier.wait(30)
            return heard

        return tell

    def run(self, call):
        results = [None] * self.size

        def work(rank):
            try:
                results[rank] = call(rank)
            except WeightsError as error:
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


@pytest.fixture
def ranks(policy, folder):
    """Three ranks, each of which is given every tensor and reads all of them."""
    world = Ranks(3)
    publishers = [policy.publisher(folder, rank=rank, ranks=3, exchange=world.exchange(rank), threads=2) for rank in range(3)]
    read = [0, 0, 0]

    def publish(version, tensors, **settings):
        def one(rank):
            def each():
                for item in tensors.items():
                    read[rank] += 1
                    yield item

            return publishers[rank].publish(version, each(), **(settings if rank == 0 else {}))

        return world.run(one)

    publish.read = read
    publish.publishers = publishers
    return publish


def test_ranks_write_a_file_each_and_none_holds_the_model(ranks, folder, policy, tmp_path, damage):
    from transformers import AutoModelForCausalLM

    whole = sum(spec.nbytes for spec in policy.specs)
    base = ranks(0, dict(policy.tensors))
    assert base[0] == base[1] == base[2] == read_version(folder, 0)
    held = [sum(bits.nbytes for bits in publisher._owned.bits.values()) for publisher in ranks.publishers]
    assert sum(held) == whole
    assert max(held) < 0.5 * whole
    names = {path.name for path in (folder / "v000000").glob("model*")}
    assert names == {f"model-0000{r}-of-00003.safetensors" for r in (1, 2, 3)} | {"model.safetensors.index.json"}
    model = AutoModelForCausalLM.from_pretrained(folder / "v000000", dtype="auto")
    assert hash_tensors(model.state_dict()) == base[0].hash == hash_tensors(policy.tensors)

    patch = ranks(1, policy.step())[0]
    assert patch.kind == "patch"
    assert patch.hash == hash_tensors(policy.tensors)
    assert len(patch.files) == 3
    with brought(folder, 1, tmp_path) as path:
        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    assert hash_tensors(model.state_dict()) == patch.hash
    assert ranks(2, policy.step(), whole=True, durable=True)[2].kind == "base", "rank 0's word counts"
    assert damage(folder) == []


@pytest.mark.parametrize("where", ["disk.write~patch-00002", "disk.mkdir~v000001"])
def test_one_rank_that_fails_fails_all_after_every_tensor_was_fetched(ranks, folder, policy, where):
    ranks(0, dict(policy.tensors))
    ranks.read[:] = [0, 0, 0]
    with armed(f"{where}=errno:ENOSPC"):
        said = ranks(1, policy.step())
    assert len({str(error) for error in said}) == 1
    assert all(isinstance(error, WeightsError) for error in said)
    assert f"trainer rank {1 if '2' in where else 0} on " in str(said[0])
    assert ranks.read == [len(policy.tensors)] * 3
    again = ranks(2, policy.step())
    assert {done.kind for done in again} == {"base"}
    assert again[0].hash == hash_tensors(policy.tensors)


def test_more_ranks_than_tensors(tmp_path, tiny_model):
    world, tensors = Ranks(4), {"a": torch.ones(2, 2), "b": torch.zeros(3)}
    specs = [TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()]
    made = [
        Publisher(tmp_path / "w", tiny_model, specs, attempt=1, rank=r, ranks=4, exchange=world.exchange(r)) for r in range(4)
    ]
    for version in range(2):
        done = world.run(lambda rank, version=version: made[rank].publish(version, tensors.items()))
        assert done[0].hash == hash_tensors(tensors)
    with brought(tmp_path / "w", 1, tmp_path) as path:
        index = json.loads((path / "model.safetensors.index.json").read_text())
        loaded = {n: load_file(path / file)[n] for n, file in index["weight_map"].items()}
    assert all(np.array_equal(loaded[name].numpy(), tensors[name].numpy()) for name in tensors)
