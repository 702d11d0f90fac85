from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors, tensor_bytes
from hpcrl.checkpoint.publish.codec import bits_of
from hpcrl.checkpoint.publish.layout import TensorSpec, owners
from hpcrl.checkpoint.publish.versions import Version, read_record
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.interface import Held
from hpcrl.checkpoint.transport.memory import MemorySender, open_version
from hpcrl.run.errors import Stopped
from hpcrl.run.failpoints import armed
from hpcrl.run.stop import StopFlag

WAIT_S = 30.0


class Trainer:
    """Ranks of a trainer in this process."""

    def __init__(self, folder: Path, base: Path, ranks: int = 1, seconds: float = WAIT_S) -> None:
        self.tensors = {name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}
        self.specs = [TensorSpec(name, "bfloat16", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.owners = owners(self.specs, ranks)
        self.ranks = [MemorySender(folder, base, self.specs, rank=r, ranks=ranks, seconds=seconds) for r in range(ranks)]

    def version(self, number: int) -> Version:
        for tensor in self.tensors.values():
            tensor.mul_(1.5)
        return Version(
            version=number,
            hash=hash_tensors(self.tensors),
            dtype="bfloat16",
            attempt=1,
            previous=number - 1,
            previous_hash="x",
            tensors={},
            files=[],
        )

    def held(self, rank: int) -> Held:
        mine = [spec for spec in self.specs if self.owners[spec.name] == rank]
        return {spec.name: (spec, bits_of(tensor_bytes(self.tensors[spec.name]), 2)) for spec in mine}

    def send(self, version: Version) -> None:
        for rank, sender in enumerate(self.ranks):
            sender.send(version, self.held(rank))


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_versions_are_models_that_load(tmp_path: Path, tiny_model: Path, ranks: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = Trainer(tmp_path, tiny_model, ranks)
    for number in range(1, 5):
        version = trainer.version(number)
        trainer.send(version)
        with open_version(tmp_path, number, version.hash, ranks=ranks, seconds=WAIT_S) as folder:
            assert hash_tensors(read(folder)) == version.hash
            assert (read_record(folder).version, read_record(folder).previous) == (number, None)
    assert hash_tensors(AutoModelForCausalLM.from_pretrained(folder).state_dict()) == version.hash
    assert AutoTokenizer.from_pretrained(folder).encode("a b")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_version_is_not_there_before_all_ranks_have_written(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model, 2)
    version = trainer.version(1)
    trainer.ranks[0].send(version, trainer.held(0))
    with pytest.raises(TransportError, match="version 1 to be in the shared memory"):
        open_version(tmp_path, 1, version.hash, ranks=2, seconds=0.05).__enter__()
    opened = threading.Event()

    def load() -> None:
        with open_version(tmp_path, 1, version.hash, ranks=2, seconds=WAIT_S):
            opened.set()

    thread = threading.Thread(target=load)
    thread.start()
    trainer.ranks[1].send(version, trainer.held(1))
    assert opened.wait(WAIT_S)
    thread.join()


def test_what_is_being_loaded_is_not_overwritten(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model, seconds=0.05)
    first = trainer.version(1)
    trainer.send(first)
    with open_version(tmp_path, 1, first.hash, ranks=1, seconds=WAIT_S) as folder:
        trainer.send(trainer.version(2))
        third = trainer.version(3)
        with pytest.raises(TransportError, match=r"engines of .* to have loaded"):
            trainer.send(third)
        assert hash_tensors(read(folder)) == first.hash
    # The slots go on in turn.
    fourth = trainer.version(4)
    trainer.send(fourth)
    with open_version(tmp_path, 4, fourth.hash, ranks=1, seconds=WAIT_S):
        pass


def test_a_version_that_was_replaced_is_not_taken_for_the_new_one(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model)
    versions = [trainer.version(number) for number in range(1, 4)]
    for version in versions:
        trainer.send(version)
    with pytest.raises(TransportError):
        open_version(tmp_path, 1, versions[0].hash, ranks=1, seconds=0.05).__enter__()
    with pytest.raises(TransportError):
        open_version(tmp_path, 3, "another hash", ranks=1, seconds=0.05).__enter__()


def test_a_half_written_version_is_never_read(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model)
    first = trainer.version(1)
    trainer.send(first)
    trainer.send(trainer.version(2))
    with armed("transport.send=errno:EIO"), pytest.raises(TransportError, match=r"rank 0 on .* cannot be filled"):
        trainer.send(trainer.version(3))
    with pytest.raises(TransportError):
        open_version(tmp_path, 1, first.hash, ranks=1, seconds=0.05).__enter__()


def test_a_writer_that_holds_the_slot_is_waited_for_and_named(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model)
    version = trainer.version(1)
    trainer.send(version)
    descriptor = os.open(tmp_path / "0" / "model.safetensors", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TransportError, match="rank 0 of the trainer to let go"):
        open_version(tmp_path, 1, version.hash, ranks=1, seconds=0.05).__enter__()
    os.close(descriptor)


def test_no_room_is_said_and_leaves_nothing(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = Trainer(tmp_path, tiny_model)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(TransportError, match="No space left"):
            trainer.send(trainer.version(1))
    assert not list(tmp_path.glob("*/*.safetensors"))
    second = trainer.version(2)
    trainer.send(second)
    with open_version(tmp_path, 2, second.hash, ranks=1, seconds=WAIT_S):
        pass


def test_waiting_hears_a_stop(tmp_path: Path) -> None:
    stop = StopFlag()
    stop.set()
    with pytest.raises(Stopped):
        open_version(tmp_path, 1, "x", ranks=1, seconds=WAIT_S, stop=stop).__enter__()


def test_close_removes_what_was_written(tmp_path: Path, tiny_model: Path) -> None:
    trainer = Trainer(tmp_path, tiny_model)
    version = trainer.version(1)
    trainer.send(version)
    trainer.ranks[0].close()
    trainer.ranks[0].close()
    assert not list(tmp_path.glob("*/*.safetensors"))
    with pytest.raises(TransportError):
        open_version(tmp_path, 1, version.hash, ranks=1, seconds=0.05).__enter__()
