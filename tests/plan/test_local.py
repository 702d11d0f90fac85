from __future__ import annotations

import os

import pytest

from hpcrl.plan.local import ephemeral_range, local_allocation, parse_gpus
from hpcrl.run.errors import CheckFailed

SMI = """0, 81559, 00000000:18:00.0, GPU-aaa
1, 81559, 00000000:2A:00.0, GPU-abb
3, 24576, 00000000:3A:00.0, GPU-ccc
"""


def test_gpus_are_read():
    assert parse_gpus(SMI, None)[0] == (0, 81559 / 1024, "00000000:18:00.0")
    assert [gpu[0] for gpu in parse_gpus(SMI, None)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [("3,0", [0, 3]), ("GPU-ccc,GPU-ab", [1, 3]), ("", []), ("-1", []), ("0,9,1", [0]), (" 1 , 3 ", [1, 3])],
)
def test_only_visible_gpus_count(visible, indexes):
    assert [gpu[0] for gpu in parse_gpus(SMI, visible)] == indexes


def test_ephemeral_range(tmp_path):
    (tmp_path / "range").write_text("20000\t30000\n")
    assert ephemeral_range(tmp_path / "range") == (20000, 30000)
    assert ephemeral_range(tmp_path / "nothing") == (32768, 60999)


def fake_smi(folder, monkeypatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_this_host_is_one_node_whose_cores_may_be_shared(tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, "echo '0, 81920, 00000000:18:00.0, GPU-aaa'")
    allocation = local_allocation()
    (node,) = allocation.nodes
    assert allocation.cpus_shared
    assert (node.gpus, node.gpu_memory_gib, node.address) == ((0,), 80.0, "127.0.0.1")
    assert node.cpus == len(os.sched_getaffinity(0))
    assert node.memory_gib > 0
    assert allocation.problems() == []


def test_gpus_that_cannot_be_asked_are_an_error(tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, "exit 9")
    with pytest.raises(CheckFailed, match="nvidia-smi is installed and cannot tell the GPUs"):
        local_allocation()
