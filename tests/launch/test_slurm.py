"""What is made of how Slurm's commands end, with fakes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmRefused


def fake(folder: Path, name: str, body: str) -> Slurm:
    command = folder / name
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    return Slurm()


def test_a_command_that_was_killed_says_nothing_about_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    slurm = fake(tmp_path, "scontrol", "kill -TERM $$")
    with pytest.raises(SlurmDown, match="killed by signal 15"):
        slurm.requeue(7)


def test_a_command_that_says_no_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    slurm = fake(tmp_path, "scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    with pytest.raises(SlurmRefused, match="presently disabled"):
        slurm.requeue(7)
