from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hpcrl.testing.slurm.processes import ProcessRef
from hpcrl.testing.slurm.programs import CommandFailed
from hpcrl.testing.slurm.record import Record
from hpcrl.testing.slurm.spec import ClusterSpec, Ports
from hpcrl.testing.slurm.status import JobState, NodeState, Status, look
from hpcrl.testing.slurm.table import render

NODES = "n1|idle|0/32/0/32|gpu:0|none\nn2|down*|0/0/32/32|gpu:0|Not responding | really\n"
PARTITIONS = "main|up|10|OFF|2\nlow|drain|5|REQUEUE|2\n"
JOBS = "7+0|main|sums|RUNNING|1:02|n[1-2]\n8|high|a|PENDING|0:00|(Resources)\n"


def record() -> Record:
    mine = ProcessRef.of(os.getpid())
    assert mine is not None
    spec = ClusterSpec(folder=Path("/tmp/cluster"), nodes=2)
    return Record(spec=spec, ports=Ports(first=17_000), version="22.05", daemons={"slurmctld": mine, "n1": mine}, whole=True)


def fake_run(nodes: str = NODES, partitions: str = PARTITIONS, jobs: str = JOBS):
    def run(*command: str) -> str:
        if command[0] == "squeue":
            return jobs
        return nodes if "--Node" in command else partitions

    return run


def test_a_look_reads_what_slurm_prints():
    status = look(record(), fake_run())
    assert status.nodes == (NodeState("n1", "idle", 0, "0", ""), NodeState("n2", "down*", 0, "0", "Not responding | really"))
    assert status.partitions[1].tier == 5
    assert status.jobs == (
        JobState("7+0", "main", "sums", "RUNNING", "1:02", "n[1-2]"),
        JobState("8", "high", "a", "PENDING", "0:00", "(Resources)"),
    )
    assert status.problems == ("node n2 is down* (Not responding | really)", "partition low is drain")
    assert not status.ok


def test_all_is_well_without_a_problem():
    status = look(record(), fake_run(nodes="n1|mixed|4/28/0/32|gpu:2|none\n", partitions="main|up|10|OFF|1\n", jobs=""))
    assert (status.ok, status.nodes[0].cpus_used, status.nodes[0].gpus_used) == (True, 4, "2")


def test_a_dead_daemon_a_silent_controller_and_half_a_start_are_problems():
    def silent(*command: str) -> str:
        raise CommandFailed("no answer")

    half = replace(record(), whole=False)
    half.daemons["n1"] = replace(half.daemons["n1"], start=0)
    assert look(half, silent).problems == (
        "n1 has ended; read /tmp/cluster/log/n1.log",
        "the start of the cluster did not come to its end; read /tmp/cluster/log, then `down` and `up`",
        "the controller does not answer: no answer",
    )


def test_json_holds_it_all():
    answer = json.loads(json.dumps(look(record(), fake_run()).to_json()))
    assert (answer["ok"], len(answer["nodes"]), answer["jobs"][0]["id"]) == (False, 2, "7+0")


def test_the_table_shows_nodes_jobs_and_problems():
    def text(status: Status) -> str:
        console = Console(width=200, no_color=True)
        with console.capture() as capture:
            console.print(render(status))
        return capture.get()

    shown = text(look(record(), fake_run()))
    for part in ("2/2 daemons", "down*", "REQUEUE", "(Resources)", "partition low is drain"):
        assert part in shown
    assert "all is well" not in shown
    assert "all is well" in text(look(record(), fake_run(nodes="", partitions="", jobs="")))
