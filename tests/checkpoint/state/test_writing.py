"""The writer's work, in this process: what it leaves when it succeeds, and when the file system does not let it."""

import errno
import os
import pickle
import time

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp

from hpcrl.checkpoint.cursor import Cursor, read_cursor
from hpcrl.checkpoint.state import rng
from hpcrl.checkpoint.state.layout import SaveName, look
from hpcrl.checkpoint.state.manifest import Manifest, check_files, newest
from hpcrl.checkpoint.state.memory import SharedMemory, copy
from hpcrl.checkpoint.state.plan import Planner
from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.request import Commit, Done, Failed, Job, decode_reply, encode
from hpcrl.checkpoint.state.restore import restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.writing import Writer
from hpcrl.run.failpoints import armed


def make_tensors(value=1.0):
    return {
        "model.w": torch.arange(12.0).reshape(3, 4) * value,
        "model.half": torch.full((5,), value, dtype=torch.bfloat16),
        "model.empty": torch.empty(0, 4),
        "optimizer.w.step": torch.tensor(value),
        "optimizer.w.turned": (torch.arange(6.0).reshape(2, 3) * value).t(),
    }


class Bench:
    """A trainer's side without its process."""

    def __init__(self, folder):
        self.folder = folder
        planner = Planner(Alone())
        self.planned = planner.plan(make_tensors())
        self.memory = SharedMemory(self.planned.places)
        self.writer = Writer(pickle.dumps(self.planned), os.dup(self.memory.descriptor))
        self.planner = planner

    def save(self, step, number, keep=2, rank=0, world_size=1, parts_s=0.2):
        self.planner.plan(make_tensors(float(step)))
        for item, target in zip(self.planned.plan.items, self.memory.tensors, strict=True):
            copy(self.planner.tensor(item), target)
        name = SaveName(1, step, number)
        (self.folder / str(name)).mkdir(parents=True)
        manifest = Manifest(run_id="mine", attempt=1, step=step, number=number, cursor=Cursor(step=step).to_record())
        job = Job(
            folder=str(self.folder),
            attempt=1,
            step=step,
            number=number,
            rank=rank,
            world_size=world_size,
            rng=rng.capture(),
            commit=None
            if rank
            else Commit(
                manifest=manifest, trained=np.array([3, 1 << 40], "<i8").tobytes(), keep=Keep(last=keep), parts_s=parts_s
            ),
        )
        return decode_reply(self.writer.answer(encode(job)))

    def restored(self, late_s=0.0):
        tensors = {name: torch.full_like(tensor, -1) for name, tensor in make_tensors().items()}
        manifest = restore(self.folder, tensors, Alone(), late_s=late_s)
        return manifest, tensors


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "a run, ünïcode 東京" / "state")


def assert_step(bench, step, late_s=0.0):
    manifest, tensors = bench.restored(late_s)
    assert manifest is not None
    assert manifest.step == step == read_cursor(bench.folder).step
    for name, tensor in make_tensors(float(step)).items():
        assert torch.equal(tensors[name], tensor), name


def test_a_save_names_every_file_and_torch_alone_can_read_it(bench):
    done = bench.save(3, 1)
    manifest = newest(bench.folder, "mine")
    assert manifest is not None
    save = bench.folder / str(manifest.name)
    assert {file.name for file in manifest.files} | {"manifest.json"} == set(os.listdir(save))
    assert isinstance(done, Done)
    assert done.bytes == sum((save / file.name).stat().st_size for file in manifest.files)
    assert np.load(save / manifest.trained.file).tolist() == [3, 1 << 40]
    assert manifest.trained.count == 2
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in make_tensors().items()}
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(save), no_dist=True)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in make_tensors(3.0).items())
    assert_step(bench, 3)


def test_the_same_step_can_be_saved_again_and_old_saves_go(bench):
    for number, step in enumerate((1, 2, 2, 3), start=1):
        assert isinstance(bench.save(step, number), Done)
    assert look(bench.folder).committed == (SaveName(1, 2, 3), SaveName(1, 3, 4))
    assert_step(bench, 3)


WRITES = ["disk.create", "disk.write", "disk.fsync", "disk.rename", "shard.begin", "shard.tensor", "shard.written"]
WRITES += ["shard.durable", "part.begin", "part.done", "commit.begin", "commit.metadata", "manifest.begin", "manifest.written"]


@pytest.mark.parametrize("point", WRITES)
@pytest.mark.parametrize("times", ["", "+"])
@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EROFS", "EIO"])
def test_a_file_system_that_fails_leaves_the_save_before_and_names_path_rank_and_host(bench, point, code, times):
    bench.save(1, 1, keep=1)
    with armed(f"{point}~step-00000002@1{times}=errno:{code}"):
        failed = bench.save(2, 2, keep=1)
    assert isinstance(failed, Failed)
    assert failed.error.startswith("trainer rank 0 on ")
    assert "the state of step 2 cannot be saved" in failed.error
    assert str(bench.folder / str(SaveName(1, 2, 2))) in failed.error
    assert os.strerror(getattr(errno, code)) in failed.error
    assert look(bench.folder).committed == (SaveName(1, 1, 1),)
    assert_step(bench, 1)
    assert isinstance(bench.save(2, 3, keep=1), Done), "the next one is whole"
    assert look(bench.folder).committed == (SaveName(1, 2, 3),)
    assert look(bench.folder).partial == ()
    assert_step(bench, 2)


def test_a_failed_save_gives_its_room_back(bench):
    with armed("disk.write@3+=errno:ENOSPC"):
        assert isinstance(bench.save(1, 1), Failed)
    assert os.listdir(bench.folder) == []


def test_a_disk_that_fills_up_in_the_middle_of_a_tensor(bench):
    bench.save(1, 1)
    for nth in range(1, 8):
        with armed(f"disk.write~.distcp@{nth}+=errno:ENOSPC"):
            failed = bench.save(2, nth + 1)
        assert isinstance(failed, Failed)
        assert "the disk is full: make room on it" in failed.error
    assert_step(bench, 1)


def test_what_another_process_still_removes_is_waited_for(bench):
    with armed("disk.create=errno:EEXIST,disk.unlink=errno:ENOTEMPTY"):
        assert isinstance(bench.save(1, 1), Done)
    assert_step(bench, 1)


def test_a_throttled_disk_takes_longer_and_loses_nothing(bench):
    began = time.monotonic()
    with armed("disk.write@1+=throttle:500000"):
        assert isinstance(bench.save(1, 1), Done)
    assert time.monotonic() - began >= 0.05
    assert_step(bench, 1)


def test_a_save_that_is_seen_late_is_read_late_and_not_taken_for_damaged(bench):
    bench.save(1, 1)
    with armed("disk.open~part=late:0.05"):
        assert_step(bench, 1, late_s=30)


def test_a_part_of_another_rank_that_does_not_come_is_named_and_nothing_committed(bench):
    bench.save(1, 1)
    failed = bench.save(2, 2, world_size=2)
    assert isinstance(failed, Failed)
    assert "nothing came from ranks [1]" in failed.error
    assert_step(bench, 1)


def test_another_rank_leaves_word_when_it_cannot_write(bench):
    with armed("shard.tensor=errno:EDQUOT"):
        failed = bench.save(2, 1, rank=1, world_size=2)
    assert isinstance(failed, Failed)
    assert "your quota is used up" in failed.error
    text = (bench.folder / str(SaveName(1, 2, 1)) / "part-1.json").read_text()
    assert "trainer rank 1 on " in text


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.999])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "rng-0.pt", "part-0.json", "trained.npy", "manifest.json"])
def test_any_byte_that_flips_is_found_and_named_and_the_save_before_is_used(bench, caplog, name, place):
    bench.save(1, 1)
    bench.save(2, 2)
    path = bench.folder / str(SaveName(1, 2, 2)) / name
    flip(path, int(path.stat().st_size * place))
    assert_step(bench, 1)
    assert f"{path} is damaged" in caplog.text
    assert "the one before is" in caplog.text
    assert isinstance(bench.save(2, 3), Done)
    assert look(bench.folder).damaged == (), "it has gone with the next commit"
    assert_step(bench, 2)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "rng-0.pt", "part-0.json", "trained.npy"])
@pytest.mark.parametrize("spoil", [os.unlink, lambda path: os.truncate(path, 1)])
def test_missing_and_cut_files(bench, name, spoil):
    bench.save(1, 1)
    bench.save(2, 2)
    manifest = newest(bench.folder)
    spoil(bench.folder / str(manifest.name) / name)
    assert name in "".join(check_files(bench.folder, manifest))
    assert_step(bench, 1)
