from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.run.errors import RoleFailed
from hpcrl.testing.slurm import daemons
from hpcrl.testing.slurm.daemons import Daemon
from hpcrl.testing.slurm.processes import kill
from hpcrl.testing.slurm.spec import ClusterSpec


def shell(folder: Path, script: str) -> Daemon:
    return Daemon(name="fake", command=("sh", "-c", script), pid_file=folder / "pid", log=folder / "log")


def test_a_daemon_has_started_when_it_wrote_its_own_pid(tmp_path: Path):
    (tmp_path / "pid").write_text("1")
    script = f"setsid -f sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' </dev/null >/dev/null 2>&1"
    process = shell(tmp_path, script).start()
    assert process.is_alive()
    assert process.pid == int((tmp_path / "pid").read_text()) != 1
    kill([process])


def test_one_that_fails_is_quoted_with_the_end_of_its_log(tmp_path: Path):
    with pytest.raises(RoleFailed, match=r"(?s)fake did not start: .* code 1: bad port.*line 9\n.*; read .*/log$") as caught:
        shell(tmp_path, f"seq -f 'line %g' 1 9 > {tmp_path}/log; echo bad port >&2; exit 1").start()
    assert "line 3" not in str(caught.value)


def test_one_that_leaves_no_pid_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(daemons, "START_S", 0.1)
    with pytest.raises(RoleFailed, match=r"waited 0\.1 s for fake to write .*/pid"):
        shell(tmp_path, "true").start()


def test_every_file_of_the_daemons_lies_below_the_folder():
    spec = ClusterSpec(folder=Path("/tmp/cluster"))
    for daemon in (daemons.munged(spec), daemons.controller(spec), daemons.node(spec, "n1")):
        paths = [word.split("=")[-1] for word in daemon.command if "/" in word] + [str(daemon.pid_file), str(daemon.log)]
        assert all(path.startswith("/tmp/cluster/") for path in paths)
