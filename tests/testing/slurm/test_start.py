from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from hpcrl.plan.local import ephemeral_range
from hpcrl.run.errors import CheckFailed
from hpcrl.testing.slurm.render import Surroundings
from hpcrl.testing.slurm.spec import ClusterSpec, Ports, count_ports
from hpcrl.testing.slurm.start import find_ports, start, write_files
from hpcrl.testing.slurm.version import SlurmVersion


def test_ports_are_free_outside_the_ephemeral_range_and_stay_the_same():
    spec = ClusterSpec(folder=Path("/tmp/ports"), nodes=20)
    first = find_ports(spec).first
    low, high = ephemeral_range()
    assert first + count_ports(spec) <= low or first > high
    assert find_ports(spec).first == first
    with socket.create_server(("127.0.0.1", first + 5)):
        assert find_ports(spec).first != first


def test_files_of_others_are_not_overwritten(tmp_path: Path):
    (tmp_path / "slurm.conf").write_text("mine")
    with pytest.raises(CheckFailed, match=r"holds files that no cluster of this tool left: .*/slurm\.conf"):
        start(ClusterSpec(folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["slurm.conf"]


def test_a_folder_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckFailed, match=r"the folder .*/file/c cannot be made \(Not a directory\)"):
        start(ClusterSpec(folder=tmp_path / "file/c"))


def test_secrets_are_the_owners_and_gpus_are_devices(tmp_path: Path):
    spec = ClusterSpec(folder=tmp_path, gpus=2, accounting=True)
    for folder in (spec.run, spec.devices):
        folder.mkdir()
    write_files(spec, Surroundings(host="laptop", user="root", ports=Ports(first=17_000), version=SlurmVersion(22, 5)))
    for secret in (spec.run / "munge.key", tmp_path / "slurmdbd.conf"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert sorted(path.name for path in spec.devices.iterdir()) == ["gpu0", "gpu1"]
    assert stat.S_ISCHR((spec.devices / "gpu0").stat().st_mode)
