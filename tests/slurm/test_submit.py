"""``hpcrl submit`` and what steers its runs, on a real Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcrl.cli import main as main_module
from hpcrl.launch.find import runs_in
from hpcrl.launch.jobs import recorded_jobs
from hpcrl.launch.layout import Asked
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.submit import Order, prepare, submit
from hpcrl.launch.survey import survey
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm.cluster import Cluster
from hpcrl.tracking.journal import Journal

pytestmark = pytest.mark.slow
TOY = Path(__file__).parents[1] / "launch" / "toy_recipe.py"
BASE = ("--site", "local-cluster", "--time", "5")
# Stands in the run's copy of the code for hpcrl's supervisor.
TELL_TALE = """
import json, os, sys
from pathlib import Path
run = Path(sys.argv[1])
(run / "seen.tmp").write_text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}))
(run / "seen.tmp").rename(run / "told")
"""


@dataclasses.dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def value(self):
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def cluster(slurm_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The shared cluster, used from an empty folder; free of jobs after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", slurm_cluster.env["SLURM_CONF"])
    monkeypatch.delenv("HPCRL_RUNS", raising=False)
    monkeypatch.setenv("HPCRL_SITES", str(tmp_path / "sites"))
    yield slurm_cluster
    monkeypatch.undo()
    jobs = slurm_cluster.run("squeue", "--noheader", "--format=%A").split()
    if jobs:
        slurm_cluster.run("scancel", *jobs)
    wait_for("the test's jobs to end", lambda: not slurm_cluster.run("squeue", "--noheader") or None, seconds=60)


@pytest.fixture
def hpcrl(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command, called in this process."""

    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hpcrl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main_module.main()
        seen = capsys.readouterr()
        return Answer(int(ended.value.code or 0), seen.out, seen.err)

    return call


def queued(cluster: Cluster) -> dict[int, str]:
    """Comment of each job that waits or runs."""
    rows = cluster.run("squeue", "--noheader", "--format=%A|%k").splitlines()
    return {int(number): comment for number, _, comment in (row.partition("|") for row in rows)}


def shown(cluster: Cluster, job: int) -> dict[str, str]:
    text = cluster.run("scontrol", "show", "job", str(job), "--oneliner")
    return dict(field.partition("=")[::2] for field in text.split())


def wrapper(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ahead of Slurm's own on PATH; ``REAL`` in its body calls that."""
    real = shutil.which(name)
    assert real is not None
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body.replace('REAL', real)}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def only_slurm(folder: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which these programs are and no others."""
    (folder / "few").mkdir()
    for name in names:
        real = shutil.which(name)
        assert real is not None
        (folder / "few" / name).symlink_to(real)
    monkeypatch.setenv("PATH", str(folder / "few"))


def told(run: RunDirectory) -> dict:
    path = run.path / "told"
    wait_for("the job's word", lambda: path.exists() or None, seconds=60)
    return json.loads(path.read_text())


def test_submit_queues_one_job_with_the_runs_tag(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    done = hpcrl("submit", TOY, *BASE, "--hold", "--name", "first", "--json")
    assert done.code == 0, done.err
    run = RunDirectory.open(tmp_path / "runs" / "first")
    assert (done.value["run"], done.value["run_id"]) == (str(run.path), run.run_id)
    job = done.value["job"]
    assert queued(cluster) == {job: f"hpcrl:{run.run_id}"}
    seen = shown(cluster, job)
    assert (seen["JobName"], seen["TimeLimit"], seen["WorkDir"]) == ("first", "00:05:00", str(tmp_path))
    assert [(item.job, item.why) for item in recorded_jobs(run)] == [(job, "submit")]
    assert run.attempts() == []
    for name in (
        "layout.json",
        "site.json",
        "job.json",
        "recipe.json",
        "recipe.py",
        "requirements.txt",
        "code/hpcrl/recipe.py",
    ):
        assert (run.path / name).exists(), name
    assert [path.name for path in (run.path / "code").iterdir()] == ["hpcrl"]
    listed = hpcrl("list", "--json").value
    assert [(item["run"], item["job"], item["state"]) for item in listed] == [("first", job, "held")]
    status = hpcrl("status", "first")
    assert f"job {job}" in status.out
    assert "held by its owner" in status.out
    assert "first" in hpcrl("list").out


def test_a_heterogeneous_job_is_one_job_too(cluster: Cluster, hpcrl: Call):
    done = hpcrl("submit", TOY, *BASE, "--hold", "--layout", "het", "--set", "gpus=2", "--name", "het")
    assert done.code == 0, done.err
    (item,) = hpcrl("list", "--json").value
    assert (item["state"], len(queued(cluster))) == ("held", 3)
    assert hpcrl("cancel", "het").code == 0
    assert queued(cluster) == {}


def test_hold_and_after(cluster: Cluster, hpcrl: Call):
    first = hpcrl("submit", TOY, *BASE, "--hold", "--name", "a", "--json").value["job"]
    by_id = hpcrl("submit", TOY, *BASE, "--after", first, "--name", "b", "--json").value["job"]
    by_name = hpcrl("submit", TOY, *BASE, "--after", "a", "--name", "c", "--json").value["job"]
    assert shown(cluster, first)["Priority"] == "0"
    for job in (by_id, by_name):
        assert shown(cluster, job)["Dependency"].startswith(f"afterany:{first}")
    wait_for("the reason", lambda: "waits for another job" in hpcrl("status", "b").out or None, seconds=20)
    unknown = hpcrl("submit", TOY, *BASE, "--after", "99999", "--name", "d")
    assert unknown.code == 2
    assert "--after 99999: Slurm knows no such job" in unknown.err


def test_a_dry_run_shows_the_script_and_leaves_nothing(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    done = hpcrl("submit", TOY, *BASE, "--dry-run")
    assert done.code == 0, done.err
    assert done.out.startswith("#!/bin/bash\n#SBATCH ")
    assert "doubler" in done.out
    assert "to start at" in done.out
    assert (queued(cluster), list(tmp_path.iterdir())) == ({}, [])
    assert set(hpcrl("submit", TOY, *BASE, "--dry-run", "--json").value) >= {"script", "plan", "layout"}


FAILS = 'REAL "$@"; code=$?; case " $* " in *--test-only*) exit $code;; esac\n'


@pytest.mark.parametrize(
    "after",
    [
        'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1',
        'echo "sbatch: error: something broke" >&2; exit 1',
        "sleep 600",
    ],
    ids=["busy", "broken", "hangs"],
)
def test_an_sbatch_that_queues_and_then_fails_leaves_one_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
):
    wrapper(tmp_path, "sbatch", FAILS + after, monkeypatch)
    slurm = Slurm(submit_seconds=5)
    order = Order(recipe=TOY, asked=Asked(time="5"), site="local-cluster", hold=True, name="one")
    done = submit(prepare(order, slurm), slurm)
    assert queued(cluster) == {done.job: f"hpcrl:{done.run.run_id}"}
    assert [item.job for item in recorded_jobs(done.run)] == [done.job]


def test_a_job_that_is_queued_and_unrecorded_is_found_and_not_doubled(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    job = hpcrl("submit", TOY, *BASE, "--hold", "--name", "a", "--json").value["job"]
    # As after a crash between sbatch and the line.
    (tmp_path / "runs" / "a" / "slurm" / "jobs.jsonl").unlink()
    assert hpcrl("list", "--json").value[0]["state"] == "held"
    assert hpcrl("resume", "a", "--json").value["job"] == job
    assert list(queued(cluster)) == [job]


def test_the_job_sees_nothing_of_a_poisoned_environment(
    cluster: Cluster, hpcrl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    poison = {
        "SLURM_CPU_BIND": "rank",
        "SLURM_GPUS_PER_NODE": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_JOB_ID": "4",
        "SLURM_NTASKS": "99",
        "SBATCH_PARTITION": "nix",
        "SBATCH_ARRAY_INX": "1-4",
        "SBATCH_HOLD": "1",
        "SQUEUE_STATES": "completed",
        "SQUEUE_FORMAT": "%x",
        "PMIX_RANK": "5",
        "PYTHONPATH": "/nowhere",
    }
    for name, value in poison.items():
        monkeypatch.setenv(name, value)
    done = hpcrl("submit", TOY, *BASE, "--hold", "--name", "clean", "--json")
    assert done.code == 0, done.err
    for name in poison:
        monkeypatch.delenv(name)
    run, job = RunDirectory.open(tmp_path / "runs" / "clean"), done.value["job"]
    (run.path / "code" / "hpcrl" / "supervise" / "supervisor.py").write_text(TELL_TALE)
    cluster.run("scontrol", "release", str(job))
    seen = told(run)
    assert not seen["env"].keys() & (poison.keys() - {"PYTHONPATH", "SQUEUE_STATES", "SQUEUE_FORMAT"})
    assert seen["env"]["PYTHONPATH"] == str(run.path / "code")
    assert seen["cwd"] == str(tmp_path)
    assert (seen["env"]["SLURM_JOB_ID"], seen["env"]["SLURM_JOB_PARTITION"]) == (str(job), "main")


def test_a_job_runs_what_was_submitted_and_not_what_was_edited_later(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "helper.py").write_text("COUNT = 6\n")
    (mine / "recipe.py").write_text(TOY.read_text().replace("count: int = 40,", "count: int = COUNT,", 1))
    text = (
        (mine / "recipe.py").read_text().replace("import numpy as np\n", "import numpy as np\n\nfrom helper import COUNT\n", 1)
    )
    (mine / "recipe.py").write_text(text.replace("count: int = 40", "count: int = COUNT"))
    done = hpcrl("submit", mine / "recipe.py", *BASE, "--hold", "--name", "kept", "--json")
    assert done.code == 0, done.err
    (mine / "helper.py").write_text("raise SystemExit('edited')\n")
    (mine / "recipe.py").write_text("raise SystemExit('edited')\n")
    run = RunDirectory.open(tmp_path / "runs" / "kept")
    with open(run.path / "code" / "hpcrl" / "__init__.py", "a") as file:
        file.write("import pathlib; (pathlib.Path(__file__).parents[2] / 'used').touch()\n")
    job = done.value["job"]
    cluster.run("scontrol", "release", str(job))
    cluster.wait_job(job, {"COMPLETED"}, seconds=200)
    assert json.loads((run.path / "seen.json").read_text()) == list(range(6))
    assert (run.path / "used").exists()
    (item,) = hpcrl("list", "--json").value
    assert item["state"] == "finished"
    seen = hpcrl("status", "kept", "--json").value
    assert seen["places"]["sink.0"]["node"] == shown(cluster, job)["NodeList"]


def test_cancel_resume_and_requeue(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    job = hpcrl("submit", TOY, *BASE, "--hold", "--name", "a", "--json").value["job"]
    run = RunDirectory.open(tmp_path / "runs" / "a")
    refused = hpcrl("resume", "a")
    assert (refused.code, len(queued(cluster))) == (2, 1)
    assert f"job {job}" in refused.err
    assert "in the queue already" in hpcrl("requeue", "a").err
    assert hpcrl("cancel", "a").code == 0
    assert queued(cluster) == {}
    assert (run.path / "cancelled").exists()
    assert hpcrl("list", "--json").value[0]["state"] == "cancelled"
    assert hpcrl("cancel", "a").code == 2
    assert hpcrl("requeue", "a").code == 2
    again = hpcrl("resume", "a", "--hold", "--json").value["job"]
    assert list(queued(cluster)) == [again]
    assert not (run.path / "cancelled").exists()
    assert [item.why for item in recorded_jobs(run)] == ["submit", "resume"]
    assert shown(cluster, again)["Comment"] == f"hpcrl:{run.run_id}"
    local = RunDirectory.create(tmp_path / "runs" / "local", name="local", recipe_json="{}")
    for command in ("cancel", "resume", "requeue"):
        answer = hpcrl(command, "local")
        assert answer.code == 2
        assert f"{local.path} was started by `hpcrl run`" in answer.err


def test_a_running_run_that_is_cancelled_saves_ends_and_stays_ended(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    job = hpcrl("submit", TOY, *BASE, "--set", "forever=true", "--name", "on", "--json").value["job"]
    run = RunDirectory.open(tmp_path / "runs" / "on")

    def is_up() -> bool | None:
        return bool(run.attempts() and list((run.latest().path / "rendezvous").glob("**/idler.json"))) or None

    wait_for("the run to be up", is_up, seconds=120)
    assert hpcrl("list", "--json").value[0]["state"] == "running"
    assert f"job {job} of run {run.path} runs" in hpcrl("resume", "on").err
    answer = hpcrl("cancel", "on")
    assert answer.code == 0
    assert f"job {job} saves and ends" in answer.out
    wait_for("the job to end", lambda: not queued(cluster) or None, seconds=120)
    assert [item.job for item in recorded_jobs(run)] == [job]
    assert len(run.attempts()) == 1
    assert hpcrl("list", "--json").value[0]["state"] == "cancelled"

    # On other nodes, with more of a group, and so that it comes to an end.
    changes = ("--nodes", "2", "--set", "doubler.replicas=3", "--set", "source.forever=false")
    again = hpcrl("resume", "on", *changes, "--json").value["job"]
    cluster.wait_job(again, {"COMPLETED"}, seconds=120)
    plan = json.loads((run.path / "attempt_2" / "plan.json").read_text())
    assert len([process for process in plan["processes"] if process["group"] == "doubler"]) == 3
    assert len({process["node"] for process in plan["processes"]}) == 2
    assert json.loads((run.path / "attempt_1" / "recipe.json").read_text())["groups"]["doubler"]["replicas"] == 2
    assert hpcrl("list", "--json").value[0]["state"] == "finished"


def test_the_time_limit_is_held_against_what_steps_took_before(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    assert "step" not in hpcrl("submit", TOY, *BASE, "--hold", "--name", "toy-a").out.partition("next:")[0]
    run = RunDirectory.open(tmp_path / "runs" / "toy-a")
    journal = Journal(run.new_attempt().journal / "sink.0.jsonl")
    steps = json.loads((run.path / "recipe.json").read_text())["schedule"]["steps"]
    journal.write("step", step=1, step_s=0.5)
    said = f"{steps} step{'s' * (steps > 1)} fit into the time limit"
    assert said in hpcrl("submit", TOY, *BASE, "--dry-run").out
    assert said in hpcrl("submit", TOY, *BASE, "--hold", "--name", "toy-b", "--json").value["estimate"]
    assert hpcrl("submit", TOY, *BASE, "--dry-run", "--set", "gpus=2", "--json").value["estimate"] == ""
    for step in (2, 3):
        journal.write("step", step=step, step_s=900.0)
    words = "does not hold one step, so the run would never get on: run toy-a took"
    refused = hpcrl("submit", TOY, *BASE, "--dry-run")
    assert refused.code == 2
    assert words in refused.err
    assert hpcrl("submit", TOY, "--site", "local-cluster", "--time", "40", "--dry-run").code == 0
    assert hpcrl("cancel", "toy-a").code == 0
    again = hpcrl("resume", "toy-a")
    assert again.code == 2
    assert words in again.err
    assert len(queued(cluster)) == 1
    assert hpcrl("resume", "toy-a", "--time", "12").code == 2
    longer = hpcrl("resume", "toy-a", "--time", "40", "--hold", "--json").value["job"]
    assert shown(cluster, longer)["TimeLimit"] == "00:40:00"


def test_a_run_goes_on_with_other_nodes_time_and_fields(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    hpcrl("submit", TOY, *BASE, "--set", "doublers=2", "--hold", "--name", "c")
    run = RunDirectory.open(tmp_path / "runs" / "c")
    before = {name: (run.path / name).read_text() for name in ("recipe.json", "layout.json", "job.json", "slurm/batch.sh")}
    refused = hpcrl("resume", "c", "--time", "9")
    assert refused.code == 2
    assert "is pending" in refused.err
    assert hpcrl("cancel", "c").code == 0
    bad = ("--set", "seed=3", "--set", "doubler.replica=3", "--partition", "nowhere", "--nodes", "99")
    for cut in (bad[:4], bad[4:6], bad[6:]):
        assert hpcrl("resume", "c", *cut).code == 2
    assert "nowhere" in hpcrl("resume", "c", "--partition", "nowhere").err
    said = hpcrl("resume", "c", *bad[:6]).err
    assert "order of its prompts" in said
    assert "doubler.replicas" in said
    assert "nowhere" in said, "all of it is said at once"
    assert before == {name: (run.path / name).read_text() for name in before}, "nothing is changed before all is well"
    assert queued(cluster) == {}

    changes = ("--time", "9", "--nodes", "2", "--partition", "low", "--set", "doubler.replicas=5", "--set", "limits.drain_s=40")
    answer = hpcrl("resume", "c", *changes, "--hold")
    assert answer.code == 0, answer.err
    assert "2 nodes" in answer.out
    (job,) = queued(cluster)
    held = shown(cluster, job)
    assert (held["TimeLimit"], held["Partition"], held["NumNodes"].partition("-")[0]) == ("00:09:00", "low", "2")
    recipe = json.loads((run.path / "recipe.json").read_text())
    assert recipe["groups"]["doubler"]["replicas"] == 5
    assert "B:USR1@70" in (run.path / "slurm" / "batch.sh").read_text(), "as the drain takes longer"
    # What was asked for stays, until it is asked for otherwise.
    assert hpcrl("cancel", "c").code == 0
    assert hpcrl("resume", "c", "--time", "7", "--hold").code == 0
    (job,) = queued(cluster)
    held = shown(cluster, job)
    assert (held["TimeLimit"], held["Partition"], held["NumNodes"].partition("-")[0]) == ("00:07:00", "low", "2")


def past_run(folder: Path, name: str, *, job: int, ended: bool) -> RunDirectory:
    """What a run leaves whose job Slurm has forgotten."""
    recipe = {"name": name, "schedule": {"steps": 2}, "groups": {"trainer": {}}}
    run = RunDirectory.create(folder / name, name=name, recipe_json=json.dumps(recipe))
    (run.path / "slurm").mkdir()
    (run.path / "slurm" / "batch.sh").touch()
    (run.path / "slurm" / "jobs.jsonl").write_text(json.dumps({"job": str(job), "t": 1.0, "why": "submit"}) + "\n")
    attempt = run.new_attempt()
    journal = Journal(attempt.journal / "trainer.0.jsonl")
    for step in (1, 2) if ended else (1,):
        journal.write("step", step=step, reward=0.5)
    if ended:
        write_done(attempt, DoneRecord(process="trainer.0", status="done"))
    return run


@pytest.mark.parametrize("sacct", ["missing", "failing", "hanging"])
def test_without_accounting_states_are_right(
    cluster: Cluster, hpcrl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sacct: str
):
    if sacct == "missing":
        only_slurm(tmp_path, ("sbatch", "squeue", "scontrol", "sinfo", "scancel"), monkeypatch)
    elif sacct == "failing":
        wrapper(tmp_path, "sacct", 'echo "sacct: error: Problem talking to the database" >&2; exit 1', monkeypatch)
    else:
        wrapper(tmp_path, "sacct", "sleep 600", monkeypatch)
    hpcrl("submit", TOY, *BASE, "--hold", "--name", "new")
    past_run(tmp_path / "runs", "finished", job=800_001, ended=True)
    past_run(tmp_path / "runs", "gone", job=800_002, ended=False)
    found = {item.run.path.name: item.standing for item in survey(runs_in(tmp_path / "runs"), Slurm(seconds=3))}
    assert {name: item.word for name, item in found.items()} == {"new": "held", "finished": "finished", "gone": "lost"}
    assert "left no record of their end" in found["gone"].why


def test_with_the_controller_down_records_are_shown_and_nothing_is_queued(cluster: Cluster, hpcrl: Call, tmp_path: Path):
    hpcrl("submit", TOY, *BASE, "--hold", "--name", "new")
    past_run(tmp_path / "runs", "running", job=800_003, ended=False)
    past_run(tmp_path / "runs", "finished", job=800_004, ended=True)
    cluster.kill_controller()
    try:
        listed = hpcrl("list", "--json")
        assert listed.code == 0
        assert {item["run"]: item["state"] for item in listed.value} == {
            "new": "submitted",
            "running": "running",
            "finished": "finished",
        }
        status = hpcrl("status", "running")
        assert status.code == 0
        assert "Slurm cannot be asked" in status.out
        assert "step 1/2" in status.out
        refused = hpcrl("submit", TOY, *BASE, "--name", "other")
        assert refused.code == 2
        assert "scontrol ping" in refused.err
        assert not (tmp_path / "runs" / "other").exists()
    finally:
        cluster.start_controller()
    assert len(queued(cluster)) == 1


def write_site(folder: Path, name: str, text: str) -> None:
    (folder / "sites").mkdir(exist_ok=True)
    (folder / "sites" / f"{name}.toml").write_text(f"{text}\n[node]\ngpus = 4\ncpus = 32\nmemory_gib = 62\n")


BAD = {
    "partition": (("--partition", "mian"), "there is no partition 'mian' on this cluster; nearest: main"),
    "time": (("--time", "soon"), "'soon' is no time limit"),
    "too short": (("--time", "0:30", "--set", "limits.drain_s=900"), "leaves no time to work"),
    "nodes": (("--set", "gpus=4", "--set", "doublers=8"), "asks for 8 nodes and partition main gives at most 6"),
    "idle nodes": (("--nodes", "99"), "nodes would hold no role"),
    "account": (("--site", "blue"), "partition high takes no jobs of account blue; it takes red"),
    "mixed": (
        ("--site", "mixed", "--layout", "het", "--set", "gpus=1"),
        "component hub (low) can be preempted and doubler (main) cannot",
    ),
    "taken": (("--name", "taken"), "is the directory of another run"),
    "unwritable": (("--run-dir", "/proc/hpcrl-run"), "cannot be written"),
    "name": (("--name", "../up"), "a name is letters"),
    "site": (("--site", "local-clutser"), "nearest: local-cluster"),
    "setting": (("--set", "cuont=3"), "nearest: count"),
    "constraint": (("--site", "odd"), "Slurm refuses the job (Invalid feature specification)"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_refused_before_anything_is_queued(cluster: Cluster, hpcrl: Call, tmp_path: Path, case: str):
    write_site(tmp_path, "blue", 'partition = "high"\naccount = "blue"')
    write_site(tmp_path, "mixed", 'partition = "main"\ncpu_partition = "low"\npreemptible_partitions = ["low"]')
    write_site(tmp_path, "odd", 'partition = "main"\nconstraint = "odd"')
    RunDirectory.create(tmp_path / "runs" / "taken", name="taken", recipe_json="{}")
    before = sorted(tmp_path.glob("**/*"))
    options, said = BAD[case]
    cluster.run("scontrol", "update", "partition=high", "AllowAccounts=red")
    try:
        answer = hpcrl("submit", TOY, *BASE, *options)
    finally:
        cluster.run("scontrol", "update", "partition=high", "AllowAccounts=ALL")
    assert answer.code == 2
    assert said in answer.err
    assert (queued(cluster), sorted(tmp_path.glob("**/*"))) == ({}, before)


def test_everything_that_is_wrong_is_said_at_once(hpcrl: Call, tmp_path: Path):
    RunDirectory.create(tmp_path / "runs" / "taken", name="taken", recipe_json="{}")
    answer = hpcrl("submit", TOY, *BASE, "--partition", "mian", "--time", "soon", "--name", "taken", "--after", "99999")
    assert answer.code == 2
    assert answer.err.startswith("hpcrl: 4 problems:")


def test_without_slurm_it_says_what_to_do(hpcrl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    answer = hpcrl("submit", TOY, *BASE)
    assert answer.code == 2
    assert "hpcrl run" in answer.err
    assert list(tmp_path.iterdir()) == []
    dry = hpcrl("submit", TOY, *BASE, "--dry-run")
    assert dry.code == 0
    assert "not checked against a cluster" in dry.err


def test_a_job_that_slurm_refuses_at_last_leaves_no_run(
    cluster: Cluster, hpcrl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    body = f'case " $* " in *--test-only*) exec REAL "$@";; esac\necho "{said}" >&2; exit 1'
    wrapper(tmp_path, "sbatch", body, monkeypatch)
    answer = hpcrl("submit", TOY, *BASE, "--name", "no")
    assert answer.code == 2
    assert "Job violates accounting/QOS policy" in answer.err
    assert not (tmp_path / "runs" / "no").exists()
    with pytest.raises(CheckFailed):
        RunDirectory.open(tmp_path / "runs" / "no")


def test_the_command_itself_ends_with_the_codes(cluster: Cluster, tmp_path: Path):
    command = [sys.executable, "-m", "hpcrl.cli.main", "submit", str(TOY), *BASE, "--name", "p"]
    good = subprocess.run([*command, "--hold"], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert "hpcrl cancel p" in good.stdout
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
