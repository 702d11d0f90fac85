from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm.processes import ProcessRef, job_processes, kill, read_pid_file


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def ref(process: subprocess.Popen[bytes]) -> ProcessRef:
    found = ProcessRef.of(process.pid)
    assert found is not None
    return found


def test_a_process_is_alive_until_it_ends(sleeper: subprocess.Popen[bytes]):
    mine = ref(sleeper)
    assert mine.is_alive()
    kill([mine])
    # Nobody has waited for it yet; it has ended all the same.
    assert not mine.is_alive()
    assert sleeper.wait() == -9


def test_a_pid_that_is_used_again_is_not_killed(sleeper: subprocess.Popen[bytes]):
    mine = ref(sleeper)
    kill([replace(mine, start=mine.start - 1), replace(mine, boot="earlier")])
    assert sleeper.poll() is None
    assert mine.is_alive()


def test_killing_what_has_ended_is_fine(sleeper: subprocess.Popen[bytes]):
    mine = ref(sleeper)
    sleeper.kill()
    sleeper.wait()
    kill([mine])


def test_a_pid_file_names_its_writer_only(sleeper: subprocess.Popen[bytes], tmp_path: Path):
    file = tmp_path / "pid"
    assert read_pid_file(file) is None
    file.write_text("")
    assert read_pid_file(file) is None
    file.write_text(f"{sleeper.pid}\n")
    assert read_pid_file(file) == ref(sleeper)
    # Written well before the process began: by an earlier owner of the pid.
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert read_pid_file(file) is None


def test_job_processes_are_found_with_their_descendants_and_users_are_not(tmp_path: Path):
    conf = tmp_path / "slurm.conf"
    path = {"PATH": os.environ["PATH"]}
    mine = {**path, "SLURM_CONF": str(conf)}
    in_job = {**mine, "SLURMD_NODENAME": "n1"}
    # The grandchild has no environment left that could tell.
    task = subprocess.Popen(["bash", "-c", "env -i sleep 60 & wait"], env=in_job, start_new_session=True)
    others = [
        subprocess.Popen(["sleep", "60"], env=mine),
        subprocess.Popen(["sleep", "60"], env={**in_job, "SLURM_CONF": f"{conf}2"}),
    ]
    try:
        found = wait_for(
            "the task and its child",
            lambda: found if len(found := job_processes(conf)) == 2 else None,
            seconds=10,
        )
        assert task.pid in [process.pid for process in found]
        kill(found)
        assert job_processes(conf) == ()
        assert [other.poll() for other in others] == [None, None]
    finally:
        for process in (task, *others):
            process.kill()
            process.wait()


def test_a_step_manager_is_found_by_its_socket_though_its_environment_is_gone(tmp_path: Path):
    # Newer step managers write their title over their environment.
    fake = tmp_path / "slurmstepd"
    fake.symlink_to(sys.executable)
    program = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); print(flush=True); time.sleep(60)"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        command = [str(fake), "-c", program, f"{folder}/n1_1.0"]
        with subprocess.Popen(command, env={}, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            assert [found.pid for found in job_processes(Path(folder) / "slurm.conf")] == [process.pid]
            assert job_processes(tmp_path / "slurm.conf") == ()
            process.kill()
