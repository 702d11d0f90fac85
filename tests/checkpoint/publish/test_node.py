"""The weights of a node: brought once, patched in place, never read while they change, and never believed when torn."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.versions import read_version, write_version
from hpcrl.run.errors import DeadlineExceeded, Stopped
from hpcrl.run.failpoints import armed
from hpcrl.run.stop import StopFlag


@pytest.fixture
def source(tmp_path):
    return tmp_path / "weights"


@pytest.fixture
def node(tmp_path, source):
    return NodeWeights(tmp_path / "node", source, wait_s=30)


def load(path):
    tensors = {}
    for file in path.glob("model*.safetensors"):
        tensors |= load_file(file)
    return tensors


def bring(node, done):
    with node.bring(done.version, done.hash) as loaded:
        assert hash_tensors(load(loaded.path)) == loaded.hash
        return loaded


def test_each_version_is_there_in_turn_and_little_is_read(node, source, policy):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    publisher = policy.publisher(source)
    reads = []
    for version in range(5):
        done = publisher.publish(version, policy.step().items())
        before = node.reads.bytes
        loaded = bring(node, done)
        assert (loaded.version, loaded.hash) == (version, done.hash)
        reads.append(node.reads.bytes - before)
        assert reads[-1] == done.size
    assert max(reads[1:]) < reads[0] / 10
    assert hash_tensors(AutoModelForCausalLM.from_pretrained(loaded.path, dtype="auto").state_dict()) == done.hash
    assert AutoTokenizer.from_pretrained(loaded.path).chat_template


def test_a_node_that_missed_versions_or_comes_late_catches_up(tmp_path, node, source, policy):
    publisher = policy.publisher(source, base_every=4)
    dones = [publisher.publish(version, policy.step().items()) for version in range(7)]
    bring(node, dones[1])
    read = node.reads.bytes
    bring(node, dones[3])
    assert node.reads.bytes - read == dones[2].size + dones[3].size
    bring(node, dones[6])
    late = NodeWeights(tmp_path / "late", source, wait_s=30)
    bring(late, dones[6])
    assert late.reads.bytes == sum(done.size for done in dones[4:])


def test_a_node_patches_in_place_and_several_files_too(node, source, policy):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    file = node._model / "model.safetensors"
    before = file.stat()
    bring(node, publisher.publish(1, policy.step().items()))
    after = file.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)


def test_the_others_of_a_node_read_nothing(node, tmp_path, source, policy):
    publisher = policy.publisher(source)
    others = [NodeWeights(tmp_path / "node", source, wait_s=30) for _ in range(4)]
    for version in range(3):
        done = publisher.publish(version, policy.step().items())
        threads = [threading.Thread(target=bring, args=(other, done)) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    read = sum(other.reads.bytes for other in others)
    assert read == sum((source / f"v00000{v}" / r.name).stat().st_size for v, r in all_files(source, 3))


def all_files(source, versions):
    return [(version, record) for version in range(versions) for record in read_version(source, version).files]


def test_a_node_that_is_ahead_gives_what_it_has(node, source, policy):
    publisher = policy.publisher(source)
    dones = [publisher.publish(version, policy.step().items()) for version in range(3)]
    bring(node, dones[2])
    assert bring(node, dones[1]).version == 2


def test_weights_do_not_change_while_one_loads_them(node, tmp_path, source, policy):
    publisher = policy.publisher(source)
    first = publisher.publish(0, policy.tensors.items())
    second = publisher.publish(1, policy.step().items())
    other = NodeWeights(tmp_path / "node", source, wait_s=60)
    with node.bring(0, first.hash) as loaded:
        thread = threading.Thread(target=bring, args=(other, second))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert hash_tensors(load(loaded.path)) == first.hash
        impatient = NodeWeights(tmp_path / "node", source, wait_s=0.1)
        with pytest.raises(DeadlineExceeded, match=r"the lock .*node/lock, which another process of this node holds"):
            bring(impatient, second)
        stop = StopFlag()
        stop.set()
        with pytest.raises(Stopped):
            bring(NodeWeights(tmp_path / "node", source, wait_s=60, stop=stop), second)
    thread.join(60)
    assert not thread.is_alive()
    assert bring(node, second).version == 1


def test_one_that_dies_while_it_changes_them_leaves_no_lock_and_nothing_to_believe(node, tmp_path, source, policy):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    done = publisher.publish(1, policy.step().items())

    def die():
        from hpcrl.checkpoint.publish import node as module

        def stop_here(name, path=""):
            if name == "node.tensor":
                os._exit(9)

        module.reach = stop_here
        from hpcrl.checkpoint.publish import assemble

        assemble.reach = stop_here
        bring(NodeWeights(tmp_path / "node", source, wait_s=30), done)

    child = multiprocessing.get_context("fork").Process(target=die)
    child.start()
    child.join(60)
    assert child.exitcode == 9
    read = node.reads.bytes
    assert bring(node, done).version == 1
    assert node.reads.bytes - read > 10 * done.size, "from the base again"


@pytest.mark.parametrize("file", ["patch.safetensors", "version.json"])
def test_a_damaged_patch_is_named_and_the_next_base_helps(node, source, policy, file, flip):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    done = publisher.publish(1, policy.step().items())
    flip(source / "v000001" / file)
    for _ in range(2):
        with pytest.raises(WeightsError, match=rf"v000001/{file}"):
            bring(node, done)
    bring(node, publisher.publish(2, policy.step().items(), whole=True))


def test_a_damaged_base_is_named(node, source, policy, flip):
    done = policy.publisher(source).publish(0, policy.tensors.items())
    flip(source / "v000000" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"v000000/model\.safetensors is damaged"):
        bring(node, done)


def test_what_was_damaged_in_memory_is_found_when_it_is_patched_and_given_up_when_it_is_not_trusted(node, source, policy):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    file = node._model / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = publisher.publish(1, policy.step(0.1).items())
    with pytest.raises(WeightsError, match=r"1 tensors in .* are not those of version 1"):
        bring(node, done)
    bring(node, done)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    node.distrust()
    bring(node, done)


def test_another_version_than_was_announced_is_refused(node, source, policy):
    policy.publisher(source).publish(0, policy.tensors.items())
    with pytest.raises(WeightsError, match=r"has hash .*, and 00 was announced"), node.bring(0, "00"):
        pass


def test_a_version_that_is_not_there_yet_is_waited_for(node, source, policy):
    done = policy.publisher(source).publish(0, policy.tensors.items())
    with armed("disk.open~version.json=late:0.5"):
        bring(node, done)


def test_a_full_node_says_what_to_do(node, source, policy):
    done = policy.publisher(source).publish(0, policy.tensors.items())
    with armed("disk.write~node=errno:ENOSPC"), pytest.raises(WeightsError) as caught:
        bring(node, done)
    assert os.strerror(errno.ENOSPC) in str(caught.value)
    assert "--shm-size" in str(caught.value)
    assert str(node._folder) in str(caught.value)
    bring(node, done)


def test_patches_of_another_tensor_are_refused(node, source, policy, tmp_path):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    done = publisher.publish(1, policy.step().items())
    tensors = load(node._model)
    name = min(tensors)
    tensors[name] = torch.zeros(3, dtype=torch.bfloat16)
    from safetensors.torch import save_file

    save_file(tensors, node._model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="does not fit"):
        bring(node, done)
    bring(node, done)


def test_a_record_that_leaves_out_what_changed_is_not_believed(node, source, policy):
    publisher = policy.publisher(source)
    bring(node, publisher.publish(0, policy.tensors.items()))
    done = publisher.publish(1, policy.step().items())
    write_version(source / "v000001", msgspec.structs.replace(done, files=[]), durable=False)
    with pytest.raises(WeightsError, match=r"the patches up to version 1 in .* leave out "):
        bring(node, done)
