"""`hpcrl run` as a person calls it: real processes, the real queue, a recipe without models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecords
from hpcrl.run.stop import wait_for
from hpcrl.testing.command_run import process_of
from hpcrl.tracking.journal import JournalReader

RECIPE = Path(__file__).with_name("toy_recipe.py")

pytestmark = pytest.mark.slow


def start(run: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hpcrl.cli.main", "run", str(RECIPE), "--run-dir", str(run), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
    )


def finish(process: subprocess.Popen[str], seconds: float = 150) -> tuple[int, str]:
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def nothing_is_left(run: Path) -> None:
    """No process of the run lives and none of its ports is taken."""
    assert nothing_runs(run)
    plan = json.loads((run / "attempt_1" / "plan.json").read_text())
    first, end = plan["ports"]
    taken = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert not taken & set(range(first, end))


def test_a_run_ends_by_itself_and_leaves_nothing_behind(tmp_path: Path, shared_memory_left: Callable[[str], set[str]]):
    run = tmp_path / "run"
    code, output = finish(start(run))
    assert code == 0, output
    assert json.loads((run / "seen.json").read_text()) == list(range(40))
    nothing_is_left(run)
    assert not shared_memory_left(RunDirectory.open(run).run_id)
    statuses = {name: record.status for name, record in DoneRecords(RunDirectory.open(run).latest()).read().items()}
    assert {statuses[f"{group}.0"] for group in ("source", "doubler", "sink")} == {"done"}
    assert statuses["idler.0"] == "done"
    assert (run / "latest" / "logs" / "doubler.1.log").exists()
    assert (run / "report.html").exists()
    assert json.loads((run / "recipe.json").read_text())["name"] == "toy"


def test_the_same_recipe_in_one_process(tmp_path: Path):
    run = tmp_path / "run"
    code, output = finish(start(run, "--in-process"))
    assert code == 0, output
    assert json.loads((run / "seen.json").read_text()) == list(range(40))
    assert (run / "report.html").exists()


@pytest.mark.parametrize("mode", ["processes", "in_process"])
def test_a_role_that_fails_ends_the_run_with_its_code_and_words(tmp_path: Path, mode: str):
    run = tmp_path / "run"
    arguments = ["--in-process"] if mode == "in_process" else []
    code, output = finish(start(run, "--set", "fail_at=20", "--set", "forever=true", *arguments))
    assert code == 17, output
    assert "number 20 is not to be doubled" in output
    if mode == "processes":
        assert "about to go wrong at 20" in output, "the last lines of its log"
        assert "doubler." in output
        nothing_is_left(run)


def test_a_role_that_is_killed_each_time_it_is_started_ends_the_run(tmp_path: Path):
    run = tmp_path / "run"
    code, output = finish(start(run, "--set", "fail_at=20", "--set", "how=kill", "--set", "limits.restarts=1"))
    assert code == 137, output
    assert output.count("was killed by SIGKILL; the run goes on from step 0 in attempt") == 2
    assert "3 attempts in a row saved nothing beyond step 0" in output
    assert "started again 1 times in this attempt" in output
    assert len(RunDirectory.open(run).attempts()) == 3
    nothing_is_left(run)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_processes_that_are_killed_are_started_again_and_every_number_arrives_once(tmp_path: Path):
    run, count = tmp_path / "run", 6000
    process = start(run, "--set", f"count={count}")
    victims = ["queue.0", "doubler.0", "source.0", "queue.0", "idler.0", "source.1", "sink.0", "queue.0", "doubler.0"]
    back: dict[str, list[float]] = {}
    for number, name in enumerate(victims):
        # Spread over the run, and never before the one killed last has been missed.
        at = (number + 1) * count // (len(victims) + 2)
        wait_for(f"{at} numbers to be added up", lambda at=at: True if lines(run / "seen") >= at else None, seconds=100)
        victim = wait_for(f"{name} to be there", lambda name=name: process_of(run, name), seconds=30)
        # More than the rows that were on their way already.
        killed, more = time.monotonic(), lines(run / "seen") + 80
        victim.kill()
        wait_for("numbers to arrive again", lambda more=more: True if lines(run / "seen") >= more else None, seconds=60)
        back.setdefault(name, []).append(time.monotonic() - killed)
    print("back in service [s]:", back)
    code, output = finish(process)
    assert code == 0, output
    assert sorted(map(int, (run / "seen").read_text().split())) == list(range(count))
    records = [r for _, r in JournalReader(run / "attempt_1" / "journal").read() if r["kind"] == "restart"]
    assert [record["process"] for record in records] == victims
    assert [record["incarnation"] for record in records if record["process"] == "queue.0"] == [1, 2, 3]
    assert max(back["queue.0"]) < 15, back
    for command, told in (("verify", "no row is leased to two"), ("status", "restarted 3x after SIGKILL")):
        asked = subprocess.run([sys.executable, "-m", "hpcrl.cli.main", command, str(run)], capture_output=True, text=True)
        assert asked.returncode == 0, asked.stdout
        assert told in asked.stdout
    nothing_is_left(run)
    run_id = RunDirectory.open(run).run_id
    assert not [name for name in os.listdir("/dev/shm") if run_id in name]


def ignitor_of(run: Path) -> int:
    """Pid of the only one."""
    found = [
        p.pid for p in psutil.process_iter(["cmdline"]) if {"hpcrl.supervise.ignitor", str(run)} <= set(p.info["cmdline"] or [])
    ]
    (pid,) = found
    return pid


@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_an_ignitor_lives_on_to_the_next_attempt_and_ends_with_the_run(tmp_path: Path, end: str):
    run = tmp_path / "run"
    process = start(run, "--set", "forever=true", "--set", "limits.restarts=0")
    pids = []
    for number in (1, 2, 3):
        journal = run / f"attempt_{number}" / "journal" / "source.0.jsonl"
        wait_for(f"attempt {number}", lambda j=journal: True if j.exists() and '"put"' in j.read_text() else None, seconds=100)
        pids.append(ignitor_of(run))
        if number < 3:
            victim = process_of(run, "source.0")
            assert victim is not None
            victim.kill()
    assert len(set(pids)) == 1
    if end == "killed":
        psutil.Process(pids[0]).kill()
        code, output = finish(process, 60)
        assert code == 137, output
    else:
        process.send_signal(signal.SIGINT)
        code, output = finish(process, 60)
        assert code == 130, output
    assert "in attempt 3" in output
    logs = [(run / f"attempt_{number}" / "logs" / "ignitor.0.log").read_text() for number in (1, 2, 3)]
    assert all("started source.0" in log for log in logs)
    wait_for("the run's processes to end", lambda: nothing_runs(run) or None, seconds=60)


def nothing_runs(run: Path) -> bool:
    """Whether no process of the run is there."""
    return not [p for p in psutil.process_iter(["cmdline"]) if str(run) in " ".join(p.info["cmdline"] or [])]


@pytest.mark.parametrize("mode", ["processes", "in_process"])
def test_ctrl_c_drains_and_says_how_to_go_on(tmp_path: Path, mode: str):
    run = tmp_path / "run"
    process = start(run, "--set", "forever=true", *(["--in-process"] if mode == "in_process" else []))
    journal = run / "attempt_1" / "journal" / "source.0.jsonl"
    wait_for("numbers to be put", lambda: True if journal.exists() and '"put"' in journal.read_text() else None, seconds=100)
    process.send_signal(signal.SIGINT)
    code, output = finish(process, 60)
    assert code == 130, output
    assert "--resume" in output
    statuses = {record.status for record in DoneRecords(RunDirectory.open(run).latest()).read().values()}
    assert "failed" not in statuses
    if mode == "processes":
        nothing_is_left(run)


@pytest.mark.parametrize("mode", ["processes", "in_process"])
def test_a_second_ctrl_c_ends_at_once_and_is_no_failure(tmp_path: Path, mode: str):
    run = tmp_path / "run"
    process = start(run, "--set", "forever=true", "--set", "deaf=true", *(["--in-process"] if mode == "in_process" else []))
    journal = run / "attempt_1" / "journal" / "source.0.jsonl"
    wait_for("numbers to be put", lambda: True if journal.exists() and '"put"' in journal.read_text() else None, seconds=100)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert any("Ctrl-C again ends at once" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGINT)
    code, output = finish(process, 60)
    assert code == 130, output
    assert "ended at once" in output
    assert "--resume" in output
    if mode == "processes":
        nothing_is_left(run)


def test_roles_end_when_their_launcher_is_killed(tmp_path: Path):
    run = tmp_path / "run"
    process = start(run, "--set", "forever=true")
    journal = run / "attempt_1" / "journal" / "source.0.jsonl"
    wait_for("numbers to be put", lambda: True if journal.exists() and '"put"' in journal.read_text() else None, seconds=100)
    process.kill()
    process.wait()

    wait_for("the run's processes to end", lambda: nothing_runs(run) or None, seconds=60)


def test_several_slots_agree_and_share_the_work(tmp_path: Path):
    """Two GPUs that only exist in what this nvidia-smi says; the roles use none of them."""
    tools = tmp_path / "bin"
    tools.mkdir()
    fake = tools / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf '0, 81920, 00000000:01:00.0, GPU-a\\n1, 81920, 00000000:02:00.0, GPU-b\\n'\n")
    fake.chmod(0o755)
    run = tmp_path / "run"
    code, output = finish(start(run, "--set", "gpus=1", env={"PATH": f"{tools}:{os.environ['PATH']}"}))
    assert code == 0, output
    assert json.loads((run / "seen.json").read_text()) == list(range(40))
    logs = [(run / "latest" / "logs" / f"ignitor.{slot}.log").read_text() for slot in (0, 1)]
    plans = {line.split("plan ")[1].split(",")[0] for log in logs for line in log.splitlines() if "plan " in line}
    assert len(plans) == 1
    doublers = [p for p in json.loads((run / "latest" / "plan.json").read_text())["processes"] if p["group"] == "doubler"]
    assert sorted(p["gpus"] for p in doublers) == [[0], [1]]
    assert all("started doubler" in log for log in logs)
