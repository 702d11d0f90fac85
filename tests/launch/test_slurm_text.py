from __future__ import annotations

import pytest

from hpcrl.launch.slurm_text import read_history, read_nodes, read_partitions, read_queue

# As printed by 22.05.8.
PARTITIONS = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE "
    "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-6] PreemptMode=OFF State=UP TotalCPUs=192 TotalNodes=6\n"
    "PartitionName=short AllowGroups=ALL AllowAccounts=red,blue AllowQos=normal AllocNodes=ALL Default=NO MaxNodes=2 "
    "MaxTime=1-00:30:00 MinNodes=0 Nodes=n[1-3] PreemptMode=REQUEUE State=DRAIN TotalCPUs=96 TotalNodes=3\n"
)


def test_components_of_a_heterogeneous_job_are_one_job_led_by_the_first():
    text = (
        "12+1|PENDING|Resources|N/A||gpu|hpcrl:b\n"
        "12+0|PENDING|Priority|2026-11-30T05:00:00||cpu|hpcrl:b\n"
        "9|RUNNING|None|2026-11-30T04:17:00|n[1-2,5]|main|hpcrl:a|with a bar\n"
        "7_3|PENDING|Priority|N/A||main|\n"
        "CLUSTER: red\n"
    )
    het, single = read_queue(text)
    assert (het.id, het.state, het.reason, het.start) == (12, "PENDING", "Resources", "2026-11-30T05:00:00")
    assert (het.partitions, het.nodes, het.comment) == (("cpu", "gpu"), (), "hpcrl:b")
    assert (single.id, single.nodes, single.comment, single.is_active) == (9, ("n[1-2,5]",), "hpcrl:a|with a bar", True)


@pytest.mark.parametrize(
    ("state", "is_active"),
    [("PENDING", True), ("COMPLETING", True), ("REQUEUE_HOLD", True), ("COMPLETED", False), ("NODE_FAIL", False)],
)
def test_which_states_are_ends(state: str, is_active: bool):
    (job,) = read_queue(f"5|{state}|None|N/A|n1|main|\n")
    assert job.is_active is is_active


def test_history_keeps_the_state_without_who_cancelled():
    cancelled, het = read_history(
        "3|CANCELLED by 1000|0:15|n1|main|\n4+0|FAILED|7:0|n2|main|hpcrl:c\n4+1|CANCELLED by 0|0:0|n3|gpu|hpcrl:c\n"
    )
    assert (cancelled.state, cancelled.exit_code) == ("CANCELLED", "0:15")
    assert (het.id, het.state, het.exit_code, het.nodes, het.comment) == (4, "FAILED", "7:0", ("n2", "n3"), "hpcrl:c")


def test_partitions():
    found = read_partitions(PARTITIONS)
    main, short = found["main"], found["short"]
    assert (main.is_default, main.nodes, main.max_nodes, main.max_minutes, main.accounts) == (True, 6, None, None, None)
    assert (short.state, short.is_default, short.nodes, short.max_nodes) == ("DRAIN", False, 3, 2)
    assert (short.max_minutes, short.accounts, short.qos) == (24 * 60 + 30, {"red", "blue"}, {"normal"})


def test_kinds_of_nodes():
    text = "main|6|32|64000|gpu:4\nbig|2|128+|1000000+|gpu:h100:8(S:0-1),gpu:a100:2,shard:4\nbig|9|64|256000|(null)\n"
    plain, mixed, bare = read_nodes(text)
    assert (plain.partition, plain.count, plain.cpus, plain.memory_mb, plain.gpus) == ("main", 6, 32, 64000, 4)
    assert (mixed.cpus, mixed.memory_mb, mixed.gpus) == (128, 1_000_000, 10)
    assert (bare.count, bare.gpus) == (9, 0)
