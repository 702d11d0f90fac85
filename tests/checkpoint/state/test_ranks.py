"""Saves of several ranks: each writes its shards, one commits; any number of ranks restores."""

import json
import os
import re
import signal
import socket
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.layout import StateError, look
from hpcrl.checkpoint.state.manifest import Mesh, check_files, newest
from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.restore import restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saver import About, Saver
from hpcrl.run.failpoints import VARIABLE, arm
from hpcrl.run.stop import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_writers")]


def whole(value=1.0):
    # Three rows over two ranks: uneven shards; one row over two: an empty one.
    return {"wide": torch.arange(15.0).reshape(3, 5) * value, "flat": torch.full((1, 4), value), "step": torch.tensor(value)}


def sharded(value=1.0):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return {
        name: tensor if name == "step" else distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole(value).items()
    }


def rank_main(folder, rank, size, port, jobs, parts_s):
    """One rank: does the jobs one after the other and writes down how they ended."""
    from hpcrl.engines.titan.settings import World
    from hpcrl.engines.titan.world import Ranks

    torch.set_num_threads(1)
    ranks = Ranks(World(rank=rank, world_size=size, world_port=port), collective_s=120)
    state, told = Path(folder) / "state", []
    saver = Saver(state, ranks, keep=Keep(last=9), mesh=Mesh(size, {"fsdp": size}), parts_s=parts_s)
    for job in jobs:
        if "save" in job:
            step = job["save"]
            saver.begin(sharded(float(step)), step, About(cursor=Cursor(step=step)) if rank == 0 else None)
            saver.copied()
            ended = saver.finish(seconds=200)
            told.append([type(ended).__name__, getattr(ended, "error", "")])
        else:
            tensors = {name: tensor * 0 - 1 for name, tensor in sharded().items()}
            try:
                manifest = restore(state, tensors, ranks, late_s=0)
                values = {name: getattr(t, "full_tensor", lambda t=t: t)().tolist() for name, t in tensors.items()}
                told.append([manifest.step, values])
            except StateError as error:
                told.append(["refused", str(error)])
    ranks.reduce_max(np.zeros(1))
    saver.close()
    ranks.close()
    Path(f"{folder}/told-{rank}.json").write_text(json.dumps(told))


def run(folder, *jobs, size=2, failpoints=None, parts_s=150.0):
    """All ranks through, as forks of this process, which need not import anything; what each was told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            be_rank(folder, rank, size, port, jobs, parts_s, (failpoints or {}).get(rank, ""))
        ranks.append(pid)
    codes = {}

    def ended():
        for pid in set(ranks) - codes.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        return True if len(codes) == size else None

    try:
        wait_for("all ranks to end", ended, seconds=280)
    finally:
        for pid in set(ranks) - codes.keys():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert list(codes.values()) == [0] * size
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(size)]


def be_rank(folder, rank, size, port, jobs, parts_s, failpoint):
    code = 1
    try:
        os.environ[VARIABLE] = failpoint
        arm(failpoint)
        rank_main(folder, rank, size, port, jobs, parts_s)
        code = 0
    except Exception:  # noqa: BLE001 - nothing may go back to the test below
        traceback.print_exc()
    finally:
        os._exit(code)


def assert_alone(folder, step):
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in whole().items()}
    manifest = restore(folder, tensors, Alone(), late_s=0)
    assert manifest is not None
    assert manifest.step == step
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole(float(step)).items())


def test_what_two_ranks_saved_one_three_and_two_restore(tmp_path):
    told = run(tmp_path, {"save": 1}, {"save": 2}, {"load": True})
    values = {name: tensor.tolist() for name, tensor in whole(2.0).items()}
    assert told == [[["Saved", ""], ["Saved", ""], [2, values]]] * 2
    manifest = newest(tmp_path / "state")
    assert manifest is not None
    assert manifest.mesh == Mesh(2, {"fsdp": 2})
    assert manifest.rng == ["rng-0.pt", "rng-1.pt"]
    names = [file.name for file in manifest.files]
    assert len(names) == len(set(names))
    assert set(names) >= {"__0_0.distcp", "__1_0.distcp", "part-0.json", "part-1.json", ".metadata", "trained.npy"}
    assert list(check_files(tmp_path / "state", manifest)) == []
    assert_alone(tmp_path / "state", 2)
    assert run(tmp_path, {"load": True}, size=3) == [[[2, values]]] * 3


def test_damage_that_one_rank_finds_has_all_of_them_go_back(tmp_path):
    run(tmp_path, {"save": 1}, {"save": 2})
    names = look(tmp_path / "state").committed
    path = tmp_path / "state" / str(names[-1]) / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    values = {name: tensor.tolist() for name, tensor in whole(1.0).items()}
    assert run(tmp_path, {"load": True}) == [[[1, values]]] * 2
    assert look(tmp_path / "state").damaged == (names[-1],)
    path.with_name("damaged.json").unlink()
    (path.parent.parent / str(names[0]) / "manifest.json").unlink()
    (first, second) = run(tmp_path, {"load": True})
    assert first[0][0] == second[0][0] == "refused"
    assert "is whole" in first[0][1]
    assert "rank 0 of the trainer refused" in second[0][1]


@pytest.mark.parametrize(
    ("failpoint", "text"),
    [
        ("shard.written~step-00000002=kill", "trainer rank 1 on .* was killed by signal 9"),
        ("disk.write~step-00000002=errno:ENOSPC", "trainer rank 1 on .*step-0000000.*the disk is full"),
        # Not even word can be left.
        ("disk.write~step-00000002@1+=errno:ENOSPC", r"nothing came from ranks \[1\]"),
        ("disk.fsync~step-00000002@2=errno:EDQUOT", "trainer rank 1 on .*your quota is used up"),
    ],
)
def test_a_rank_that_cannot_write_is_named_by_rank_0_and_the_save_before_stays(tmp_path, failpoint, text):
    parts_s = 20.0 if "nothing came" in text else 150.0
    first, second = run(tmp_path, {"save": 1}, {"save": 2}, {"save": 3}, failpoints={1: failpoint}, parts_s=parts_s)
    assert [kind for kind, _ in first] == ["Saved", "NotSaved", "Saved"]
    assert re.search(text, first[1][1]), first[1][1]
    assert [kind for kind, _ in second] == ["Saved", "NotSaved", "Saved"]
    assert [name.step for name in look(tmp_path / "state").committed] == [1, 3]
    assert look(tmp_path / "state").partial == ()
    assert_alone(tmp_path / "state", 3)
