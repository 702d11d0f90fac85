from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.run.errors import CheckFailed, HpcrlError, RoleFailed
from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm import programs
from hpcrl.testing.slurm.cluster import Cluster
from hpcrl.testing.slurm.processes import ProcessRef, job_processes, kill
from hpcrl.testing.slurm.record import load_record

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm_installed")]
TOOL = Path(__file__).parents[2] / "tools" / "slurm_cluster.py"


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, free of jobs before and after."""
    yield slurm_cluster
    jobs = slurm_cluster.run("squeue", "--noheader", "--format=%A").split()
    if jobs:
        slurm_cluster.run("scancel", *jobs)
    wait_for("the test's jobs to end", lambda: not slurm_cluster.run("squeue", "--noheader") or None, seconds=20)


def submit(cluster: Cluster, folder: Path, script: str, *options: str) -> str:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\ncd {folder}\n{script}\n")
    return cluster.run("sbatch", "--parsable", f"--output={folder}/job.out", *options, str(path)).strip()


def lines_of(path: Path, count: int, seconds: float = 20) -> list[str]:
    def poll() -> list[str] | None:
        found = path.read_text().splitlines() if path.exists() else []
        return found if len(found) >= count else None

    return wait_for(f"{count} lines in {path}", poll, seconds=seconds)


def all_refs(cluster: Cluster) -> list[ProcessRef]:
    record = load_record(cluster.spec.folder)
    assert record is not None
    return [*record.daemons.values(), *job_processes(cluster.spec.conf)]


def test_it_is_up_in_seconds_and_well(short_folder: Path):
    begun = time.monotonic()
    with Cluster(short_folder / "c") as cluster:
        assert time.monotonic() - begun < 8
        status = cluster.status()
        assert status.ok, status.problems
        assert [(node.name, node.state) for node in status.nodes] == [(f"n{i}", "idle") for i in range(1, 7)]
        assert {part.name: part.preempt_mode for part in status.partitions} == {"main": "OFF", "low": "REQUEUE", "high": "OFF"}
        assert stat.S_IMODE((short_folder / "c/run/munge.key").stat().st_mode) == 0o600
        pids = all_refs(cluster)
        cluster.up()
        assert all_refs(cluster) == pids
        with pytest.raises(HpcrlError, match="another cluster is up"):
            Cluster(short_folder / "c", nodes=2).up()
    assert not (short_folder / "c").exists()


def test_srun_reaches_every_node(cluster: Cluster):
    answer = cluster.run("srun", "--nodes=6", "bash", "-c", "echo $SLURMD_NODENAME")
    assert sorted(answer.split()) == [f"n{i}" for i in range(1, 7)]


def test_two_exact_steps_have_different_gpus(cluster: Cluster, tmp_path: Path):
    # Each step stays until the other is there, so that they do hold their GPUs at the same time.
    script = """
    for step in a b; do
      srun --exact --nodes=1 --ntasks=1 --cpus-per-task=1 --gpus-per-node=2 bash -c \
        "echo \\$CUDA_VISIBLE_DEVICES > $step.tmp; mv $step.tmp $step; until [ -e a ] && [ -e b ]; do sleep 0.05; done" &
    done
    wait
    """
    job = submit(cluster, tmp_path, script, "--nodes=1", "--ntasks=2", "--cpus-per-task=1", "--gpus-per-node=4")
    cluster.wait_job(job, {"COMPLETED"}, seconds=20)
    seen = [(tmp_path / step).read_text().strip().split(",") for step in "ab"]
    assert sorted(seen[0] + seen[1]) == ["0", "1", "2", "3"]


def test_high_preempts_low_which_hears_of_it_and_is_requeued(cluster: Cluster, tmp_path: Path):
    script = """
    trap 'echo usr1 >> seen' USR1
    echo "start ${SLURM_RESTART_COUNT:-0}" >> seen
    srun sleep 600 &
    wait; wait
    """
    options = ("--partition=low", "--requeue", "--exclusive", "--signal=B:USR1@30", "--open-mode=append")
    low = submit(cluster, tmp_path, script, "--nodes=6", *options)
    lines_of(tmp_path / "seen", 1)
    high = cluster.run("sbatch", "--parsable", "--partition=high", "--nodes=6", "--output=/dev/null", "--wrap=true").strip()
    cluster.wait_job(high, {"COMPLETED"}, seconds=30)
    cluster.wait_job(low, {"RUNNING"}, seconds=30)
    assert lines_of(tmp_path / "seen", 3) == ["start 0", "usr1", "start 1"]


def test_main_is_protected_from_high(cluster: Cluster):
    wrap = ("--exclusive", "--nodes=6", "--output=/dev/null", "--wrap=srun sleep 600")
    protected = cluster.run("sbatch", "--parsable", "--partition=main", *wrap).strip()
    cluster.wait_job(protected, {"RUNNING"}, seconds=20)
    waiting = cluster.run("sbatch", "--parsable", "--partition=high", *wrap).strip()

    def why() -> str | None:
        reason = cluster.run("squeue", "--noheader", f"--jobs={waiting}", "--format=%r").strip()
        return reason if reason == "Resources" else None

    wait_for("the scheduler to have looked at the job", why, seconds=20)
    assert cluster.wait_job(protected, {"RUNNING"}, seconds=1) == "RUNNING"


def test_a_batch_script_is_signalled_before_its_time_limit(cluster: Cluster, tmp_path: Path):
    script = "trap 'echo usr1 > seen; exit 0' USR1\ntouch ready\nsleep 600 &\nwait"
    job = submit(cluster, tmp_path, script, "--time=1", "--signal=B:USR1@30")
    # It may come up to 60 s early: on a limit of one minute, at once.
    assert lines_of(tmp_path / "seen", 1, seconds=65) == ["usr1"]
    cluster.wait_job(job, {"COMPLETED"}, seconds=20)


def test_one_srun_spans_the_components_of_a_het_job(cluster: Cluster, tmp_path: Path):
    script = """
    srun --het-group=0,1 bash -c 'echo $SLURM_JOB_ID $SLURM_PROCID $SLURMD_NODENAME "$CUDA_VISIBLE_DEVICES"' > ranks
    """
    options = ("--nodes=1", "--ntasks=1", ":", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=4")
    job = submit(cluster, tmp_path, script, *options)
    cluster.wait_job(job, {"COMPLETED"}, seconds=30)
    ranks = sorted(line.split(" ") for line in (tmp_path / "ranks").read_text().splitlines())
    assert [(rank[0], rank[1]) for rank in ranks] == [(job, str(number)) for number in range(5)]
    assert [rank[3] for rank in ranks] == ["", *["0,1,2,3"] * 4]
    assert len({rank[2] for rank in ranks}) == 3


def test_a_lost_node_requeues_its_job_and_comes_back(cluster: Cluster, tmp_path: Path):
    job = submit(cluster, tmp_path, 'echo "$SLURMD_NODENAME" >> seen\nsrun sleep 600', "--requeue", "--nodelist=n2")
    assert lines_of(tmp_path / "seen", 1) == ["n2"]
    cluster.node_down(2)
    assert "node n2 is down" in " ".join(cluster.status().problems)
    cluster.wait_job(job, {"PENDING"}, seconds=20)
    cluster.node_up(2)
    assert cluster.status().ok
    cluster.wait_job(job, {"RUNNING"}, seconds=30)
    assert lines_of(tmp_path / "seen", 2) == ["n2", "n2"]


def test_steps_outlive_the_controller(cluster: Cluster, tmp_path: Path):
    job = submit(cluster, tmp_path, "srun bash -c 'until [ -e go ]; do echo tick >> ticks; sleep 0.1; done'")
    lines_of(tmp_path / "ticks", 1)
    cluster.kill_controller()
    assert any(problem.startswith("slurmctld has ended") for problem in cluster.status().problems)
    lines_of(tmp_path / "ticks", len(lines_of(tmp_path / "ticks", 1)) + 3)
    cluster.start_controller()
    assert cluster.status().ok
    assert cluster.wait_job(job, {"RUNNING"}, seconds=5) == "RUNNING"
    (tmp_path / "go").touch()
    cluster.wait_job(job, {"COMPLETED"}, seconds=30)


def test_a_wait_that_fails_says_why_the_job_is_not_there(cluster: Cluster):
    job = cluster.run("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip()
    with pytest.raises(HpcrlError, match=rf"job {job} to be RUNNING; it is PENDING, reason JobHeldUser"):
        cluster.wait_job(job, {"RUNNING"}, seconds=0.3)


def test_two_clusters_live_side_by_side(cluster: Cluster, short_folder: Path):
    with Cluster(short_folder / "other", nodes=2, gpus=0) as other:
        answer = other.run("srun", "--nodes=2", "bash", "-c", "echo $SLURM_CLUSTER_NAME")
        assert set(answer.split()) == {other.spec.name}
        assert other.spec.name != cluster.spec.name
    assert cluster.status().ok


def test_down_ends_what_is_its_own_and_leaves_nothing(cluster: Cluster, short_folder: Path):
    folder = short_folder / "c"
    mine = Cluster(folder, nodes=2).up()
    # Without a name for its parents, and deaf to SIGTERM: only a search finds it.
    script = "trap '' TERM\nsetsid bash -c 'sleep 600 & wait' &\nsrun --nodes=2 --ntasks=2 sleep 600 &\nwait"
    submit(mine, short_folder, script, "--nodes=2")
    wait_for("the job's processes", lambda: len(job_processes(mine.spec.conf)) >= 8 or None, seconds=20)
    watching = subprocess.Popen(
        ["srun", "sleep", "600"], env={**programs.clean_environment(), **mine.env}, stderr=subprocess.DEVNULL
    )
    wait_for("the second job", lambda: mine.run("squeue", "--noheader").count(" R ") == 2 or None, seconds=20)
    (folder / "notes").write_text("mine")
    refs = all_refs(mine)
    shell = subprocess.Popen(["sleep", "600"], env={**os.environ, **mine.env})
    try:
        mine.down()
        assert [ref for ref in refs if ref.is_alive()] == []
        assert watching.wait(timeout=10) != 0
        assert shell.poll() is None
        assert [path.name for path in folder.iterdir()] == ["notes"]
        mine.down()
    finally:
        for process in (shell, watching):
            process.kill()
            process.wait()
    assert cluster.status().ok


def test_up_after_a_crash_starts_afresh(short_folder: Path):
    mine = Cluster(short_folder / "c", nodes=2).up()
    submit(mine, short_folder, "srun sleep 600", "--nodes=2")
    wait_for("the job's processes", lambda: len(job_processes(mine.spec.conf)) >= 6 or None, seconds=20)
    record = load_record(mine.spec.folder)
    assert record is not None
    left = all_refs(mine)
    kill([record.daemons["slurmctld"], record.daemons["n1"]])
    # As after a crash in the middle of a start: not even the record knows all.
    del record.daemons["n2"]
    record.whole = False
    record.save()
    try:
        mine.up()
        assert [ref for ref in left if ref.is_alive()] == []
        status = mine.status()
        assert (status.ok, status.jobs) == (True, ())
    finally:
        mine.down()


def test_the_longest_folder_holds_every_socket(short_folder: Path):
    limit = Cluster(short_folder, nodes=1).spec.longest_folder
    folder = short_folder / ("x" * (limit - len(str(short_folder)) - 1))
    with pytest.raises(CheckFailed, match=f"leave room for {limit}"):
        Cluster(f"{folder}x", nodes=1)
    with Cluster(folder, nodes=1, gpus=1) as mine:
        assert mine.run("srun", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES") == "\n"
        assert mine.run("srun", "--gpus-per-node=1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES") == "0\n"


def test_a_daemon_that_cannot_start_is_quoted_and_the_rest_taken_down(short_folder: Path, monkeypatch: pytest.MonkeyPatch):
    fake = short_folder / "bin"
    fake.mkdir()
    (fake / "slurmctld").write_text('#!/bin/sh\n[ "$1" = -V ] && exec /usr/sbin/slurmctld -V\necho "no luck" >&2\nexit 3\n')
    (fake / "slurmctld").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    with pytest.raises(RoleFailed, match=r"slurmctld did not start: .*no luck"):
        Cluster(short_folder / "c", nodes=1).up()
    assert [path.name for path in (short_folder / "c").iterdir()] == ["log"]


def test_the_tool_starts_shows_and_stops(short_folder: Path):
    folder = str(short_folder / "c")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, check=False, timeout=60)

    assert call("status", folder).returncode == 1
    up = call("up", folder, "--nodes", "2")
    try:
        assert up.stdout.splitlines() == [f"export SLURM_CONF={folder}/slurm.conf", "sinfo"], up.stderr
        assert "all is well" in call("status", folder).stdout
        record = load_record(Path(folder))
        assert record is not None
        os.kill(record.daemons["n2"].pid, signal.SIGKILL)
        wait_for("the daemon to end", lambda: not record.daemons["n2"].is_alive() or None, seconds=10)
        seen = call("status", folder, "--json")
        assert seen.returncode == 1
        answer = json.loads(seen.stdout)
        assert answer["ok"] is False
        assert re.fullmatch(r"n2 has ended; read .*/n2.log", answer["problems"][0])
    finally:
        assert call("down", folder).returncode == 0
    assert call("down", folder).returncode == 0
    assert not Path(folder).exists()


def test_accounting_remembers_finished_jobs(short_folder: Path):
    if programs.missing_packages(accounting=True) and os.geteuid() != 0:
        pytest.skip("needs Debian's packages slurmdbd and mariadb-server")
    with Cluster(short_folder / "c", nodes=1, accounting=True) as mine:
        job = mine.run("sbatch", "--parsable", "--output=/dev/null", "--gpus-per-node=2", "--wrap=exit 7").strip()
        mine.wait_job(job, {"FAILED"}, seconds=20)

        def poll() -> str | None:
            shown = mine.run("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,ExitCode")
            return shown if "FAILED" in shown else None

        assert wait_for("sacct to know the job", poll, seconds=20) == "FAILED|7:0\n"
