from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrl.run.errors import CheckFailed
from hpcrl.testing.slurm import programs


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_options_of_an_allocation_around_us_reach_no_command(monkeypatch: pytest.MonkeyPatch):
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "SQUEUE_FORMAT", "PMIX_RANK"):
        monkeypatch.setenv(name, "x")
    shown = programs.output_of(["env"], seconds=5, env={"SLURM_CONF": "/c"}).splitlines()
    assert [line for line in shown if line.startswith(programs.OPTION_PREFIXES)] == ["SLURM_CONF=/c"]


def test_a_failing_command_is_quoted():
    with pytest.raises(programs.CommandFailed, match=r"`sh -c echo no >&2; exit 3` ended with code 3: no$"):
        programs.output_of(["sh", "-c", "echo no >&2; exit 3"], seconds=5)


def test_a_command_has_a_deadline():
    with pytest.raises(programs.CommandFailed, match=r"`sleep 60` gave no answer in 0\.05 s"):
        programs.output_of(["sleep", "60"], seconds=0.05)


def test_missing_programs_name_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SEARCH", ())
    assert programs.missing_packages(accounting=False) == ("munge", "slurm-client", "slurmctld", "slurmd")
    for name in ("slurmctld", "slurmd", "srun", "munged"):
        program(tmp_path, name, "")
    assert programs.missing_packages(accounting=False) == ()
    assert programs.missing_packages(accounting=True) == ("mariadb-server", "slurmdbd")


def test_where_nothing_can_be_installed_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckFailed, match="packages munge, slurmd; install them"):
        programs.install(["munge", "slurmd"])
    program(tmp_path, "apt-get", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CheckFailed, match=r"only root can install them: sudo apt-get install .* munge slurmd"):
        programs.install(["munge", "slurmd"])


def test_root_installs_with_fresh_lists_where_the_old_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A fake apt that knows no package before an update.
    program(tmp_path, "apt-get", f'echo "$1" >> {tmp_path}/calls\n[ "$1" = update ] || grep -q update {tmp_path}/calls')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    programs.install(["munge"])
    assert (tmp_path / "calls").read_text().split() == ["install", "update", "install"]
