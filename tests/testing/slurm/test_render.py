from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.testing.slurm.render import Surroundings, render_all
from hpcrl.testing.slurm.spec import ClusterSpec, Ports
from hpcrl.testing.slurm.version import SlurmVersion

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "default": (ClusterSpec(folder=Path("/tmp/cluster")), SlurmVersion(22, 5)),
    "one_node_without_gpus": (ClusterSpec(folder=Path("/tmp/cluster"), nodes=1, gpus=0), SlurmVersion(24, 11)),
    "accounting": (ClusterSpec(folder=Path("/tmp/cluster"), nodes=2, gpus=1, cpus=8, accounting=True), SlurmVersion(24, 11)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_as_they_were(case: str):
    spec, version = CASES[case]
    around = Surroundings(host="laptop", user="root", ports=Ports(first=17_000), version=version)
    files = render_all(spec, around)
    golden = {path.name: path.read_text() for path in (GOLDEN / case).iterdir()}
    assert files == golden
