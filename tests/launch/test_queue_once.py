"""``sbatch`` and ``squeue`` here are fakes: scripts that keep their queue in a file and fail as they are told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcrl.launch.queue_once import NotKnown, queue_once
from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused

SBATCH = """#!/bin/bash
cd {folder}
echo call >> calls
how=$(sed -n "$(wc -l < calls)p" how)
case $how in
  *queue*) number=$(( $(wc -l < queue) + 1 )); echo "$number|PENDING|None|N/A||main|hpcrl:me" >> queue; echo $number;;
esac
case $how in
  *busy*) echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1;;
  *refuse*) echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1;;
  *hang*) sleep 60;;
esac
"""
SQUEUE = """#!/bin/bash
cd {folder}
[ -e deaf ] && { echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
cat queue
"""
SCANCEL = """#!/bin/bash
sed -i "s/^$1|PENDING/$1|CANCELLED/" {folder}/queue
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("{folder}", str(tmp_path)))
        path.chmod(0o755)
    (tmp_path / "queue").write_text("1|RUNNING|None|N/A|n1|main|hpcrl:somebody else\n")
    return tmp_path


def call(fake: Path, *how: str, before: tuple[int, ...] = ()) -> int:
    (fake / "how").write_text("".join(f"{line}\n" for line in how))
    slurm = Slurm({"PATH": f"{fake}/bin:{os.environ['PATH']}"}, seconds=5, submit_seconds=1.5)
    return queue_once(slurm, Path("x.sh"), (), tag="hpcrl:me", name="me", user=0, before=before, settle_s=0.5)


def jobs(fake: Path, state: str = "PENDING") -> list[int]:
    rows = [line.split("|") for line in (fake / "queue").read_text().splitlines()]
    return [int(row[0]) for row in rows if row[1] == state]


def calls(fake: Path) -> int:
    return len((fake / "calls").read_text().splitlines())


def test_a_good_submission_is_one_call(fake: Path):
    assert call(fake, "queue") == 2
    assert (jobs(fake), calls(fake)) == ([2], 1)


@pytest.mark.parametrize("how", ["queue busy", "queue refuse", "queue hang"])
def test_a_job_that_was_queued_all_the_same_is_found(fake: Path, how: str):
    began = time.monotonic()
    assert call(fake, how, "queue") == 2
    assert (jobs(fake), calls(fake)) == ([2], 1)
    # The wrapper's own child held the pipes, and did not hold us.
    assert time.monotonic() - began < 10


def test_a_busy_controller_that_queued_nothing_is_asked_again(fake: Path):
    assert call(fake, "busy", "queue") == 2
    assert (jobs(fake), calls(fake)) == ([2], 2)


def test_a_first_job_that_came_late_is_kept_and_the_second_cancelled(fake: Path):
    # Both are in the queue after the second try: one was not yet there when it was looked for.
    script = (
        (fake / "bin" / "sbatch")
        .read_text()
        .replace("*queue*)", '*late*) echo "2|PENDING|None|N/A||main|hpcrl:me" >> queue;;&\n  *queue*)')
    )
    (fake / "bin" / "sbatch").write_text(script)
    assert call(fake, "busy", "late queue") == 2
    assert (jobs(fake), jobs(fake, "CANCELLED")) == ([2], [3])


def test_a_refused_job_is_not_tried_again(fake: Path):
    with pytest.raises(SlurmRefused, match="Invalid qos"):
        call(fake, "refuse", "queue")
    assert (jobs(fake), calls(fake)) == ([], 1)


def test_a_controller_that_stays_busy_is_given_up(fake: Path):
    with pytest.raises(SlurmRefused, match="not queued"):
        call(fake, "busy", "busy", "queue")
    assert (jobs(fake), calls(fake)) == ([], 2)


def test_without_an_answer_from_the_queue_nothing_is_tried_again(fake: Path):
    (fake / "deaf").touch()
    with pytest.raises(NotKnown, match="hpcrl resume"):
        call(fake, "queue busy", "queue")
    assert (jobs(fake), calls(fake)) == ([2], 1)


def test_older_jobs_of_the_run_are_not_taken_for_the_new_one(fake: Path):
    with open(fake / "queue", "a") as file:
        file.write("2|CANCELLED|None|N/A||main|hpcrl:me\n")
    assert call(fake, "busy", "queue", before=(2,)) == 3


def test_without_slurm_the_error_offers_a_run_on_this_machine(tmp_path: Path):
    with pytest.raises(SlurmMissing, match="hpcrl run"):
        Slurm({"PATH": str(tmp_path)}).partitions()


def test_a_silent_command_is_given_up_at_its_deadline(fake: Path):
    (fake / "bin" / "squeue").write_text("#!/bin/bash\nsleep 60\n")
    began = time.monotonic()
    with pytest.raises(SlurmDown, match="did not answer within 1 s"):
        Slurm({"PATH": f"{fake}/bin:{os.environ['PATH']}"}, seconds=1).queue(users=[0])
    assert time.monotonic() - began < 5
