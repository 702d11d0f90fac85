from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.testing.slurm.spec import SOCKET_CHARACTERS, ClusterSpec, Ports, count_ports


def test_every_problem_is_found_at_once():
    problems = ClusterSpec(folder=Path("/tmp/a b"), nodes=0, gpus=-1, cpus=0).problems()
    assert [problem.split()[0] for problem in problems] == ["nodes", "gpus", "cpus", "the"]


@pytest.mark.parametrize("character", [" ", "#", "%", "[", ",", "\n"])
def test_characters_with_a_meaning_in_slurm_conf_are_refused(character: str):
    assert ClusterSpec(folder=Path(f"/tmp/a{character}b")).problems()


@given(st.integers(1, 200))
def test_the_longest_folder_just_holds_the_longest_socket(nodes: int):
    limit = ClusterSpec(folder=Path("/"), nodes=nodes).longest_folder
    spec = ClusterSpec(folder=Path("/" + "x" * (limit - 1)), nodes=nodes)
    assert spec.problems() == []
    last = spec.node_names[-1]
    # 4294967291 is the step number of a batch script.
    assert len(f"{spec.folder}/{last}/{last}_99999.4294967291.0") == SOCKET_CHARACTERS
    assert max(len(str(spec.munge_socket)), len(str(spec.database_socket))) < SOCKET_CHARACTERS
    too_long = ClusterSpec(folder=Path(f"{spec.folder}x"), nodes=nodes).problems()
    assert f"leave room for {limit}" in too_long[0]
    assert "choose a shorter one" in too_long[0]


def test_folders_have_names_of_their_own_that_stay():
    names = [ClusterSpec(folder=Path(f"/tmp/c{number}")).name for number in range(50)]
    assert len(set(names)) == 50
    assert ClusterSpec(folder=Path("/tmp/c0"), nodes=2).name == names[0]


def test_ports_of_a_cluster_do_not_meet():
    ports, spec = Ports(first=20_000), ClusterSpec(folder=Path("/tmp/c"), nodes=5)
    first, last = ports.of_nodes(spec.nodes)
    used = [ports.controller, ports.database, *range(first, last + 1)]
    assert used == list(range(20_000, 20_000 + count_ports(spec)))
