from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.launch.layout import Component, Layout
from hpcrl.run.errors import CheckFailed
from hpcrl.supervise.place import address_of, given_gpus, slurm_place


def component(name: str, gpus: int) -> Component:
    return Component(
        name=name, groups=(name,), nodes=1, gpus_per_node=gpus, cpus_per_node=6, memory_gib=3.0, partition="main", spares=0
    )


def write(folder: Path, *components: Component) -> Path:
    (folder / "layout.json").write_text(Layout(components=components, no_kill=False, minutes=1).to_json())
    return folder


ENVIRON = {"SLURMD_NODENAME": "no-such-node", "SLURM_LOCALID": "1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}


def test_a_place_is_what_the_layout_asked_for_where_slurm_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")  # no nvidia-smi
    run = write(tmp_path, component("hub", 0), component("trainer", 2))
    place = slurm_place(run, "trainer", {**ENVIRON, "CUDA_VISIBLE_DEVICES": "3,2"})
    (node,) = place.here.nodes
    assert (node.name, node.component, node.address) == ("no-such-node", "trainer", "127.0.0.1")
    assert (node.cpus, node.memory_gib, node.gpus) == (6, 3.0, (2, 3))
    assert not place.here.cpus_shared
    assert place.rank == 1
    assert place.components == {"hub": "hub", "trainer": "trainer"}
    assert slurm_place(run, "hub", ENVIRON).here.nodes[0].gpus == ()


def test_a_single_allocation_has_no_components(tmp_path: Path):
    place = slurm_place(write(tmp_path, component("all", 0)), "all", ENVIRON)
    assert (place.components, place.here.nodes[0].component) == (None, "")


def test_a_step_without_the_gpus_that_were_asked_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CheckFailed, match=r"gave 1 GPUs .* asks for 2"):
        slurm_place(write(tmp_path, component("all", 2)), "all", {**ENVIRON, "CUDA_VISIBLE_DEVICES": "0"})


def test_the_address_is_the_way_to_the_one_that_started_the_step():
    assert address_of({**ENVIRON, "SLURMD_NODENAME": "localhost"}) == "127.0.0.1"
    assert address_of({**ENVIRON, "SLURM_LAUNCH_NODE_IPADDR": "not an address"}) == "127.0.0.1"


@pytest.mark.parametrize(("text", "gpus"), [("", ()), ("1,0", (0, 1)), ("GPU-abc", ()), (" 7 ", (7,))])
def test_gpus_are_read_from_the_step(text: str, gpus: tuple[int, ...]):
    assert given_gpus({"CUDA_VISIBLE_DEVICES": text}) == gpus
