from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.launch.sole import at_work
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

HOLD = """
import sys
from pathlib import Path
from hpcrl.launch.sole import at_work
from hpcrl.run.directory import RunDirectory
with at_work(RunDirectory.open(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")


def test_who_is_at_work_is_named_and_a_killed_one_is_not(run: RunDirectory):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(CheckFailed, match=f"at work already, by process {other.pid} on "), at_work(run):
        pass
    other.kill()
    other.communicate(timeout=20)
    with at_work(run), pytest.raises(CheckFailed, match=f"by process {os.getpid()} on "), at_work(run):
        pass
    with at_work(run):
        pass


def test_a_damaged_note_names_nobody(run: RunDirectory):
    with at_work(run):
        (run.path / "at-work").write_text("?")
        with pytest.raises(CheckFailed, match="is at work already; wait"), at_work(run):
            pass
