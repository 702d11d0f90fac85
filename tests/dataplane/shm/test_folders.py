from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.shm.folders import Claim, attempt_folder, kept_folder, remove_attempt, shared_folder, sweep, usage
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.run.directory import RunDirectory

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from hpcrl.dataplane.shm.folders import Claim
claim = Claim(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""
KEEP = """
import sys
from pathlib import Path
from hpcrl.dataplane.shm import folders
from hpcrl.run.directory import RunDirectory
folders.choose_root = lambda need, fallback: Path(sys.argv[2])
with folders.kept_folder(RunDirectory.open(Path(sys.argv[1])).latest()) as folder:
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "weights" / "model.safetensors").write_bytes(b"x" * 1000)
    print("ready", flush=True)
    sys.stdin.read()
"""
# Writes, frees and reads without end, as fast as it can.
WORK = """
import sys
from pathlib import Path
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter
folder, who = Path(sys.argv[1]), sys.argv[2]
writer = SegmentWriter(folder, who, 1, "n", segment_bytes=2**16, spare_bytes=2**17)
reader = SegmentReader(folder, "n")
made = {}
print("ready", flush=True)
for number in range(10**9):
    ref = writer.write([b"x" * (1000 + number % 40000)])
    made[ref.where] = made.get(ref.where, 0) + 1
    assert bytes(reader.read(ref)[:1]) == b"x"
    if len(made) > 4:
        name = next(iter(made))
        writer.freed({name: made.pop(name)})
"""


@contextlib.contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed its first line; ended after."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_the_folder_says_user_run_and_attempt():
    assert attempt_folder("20260101-ab", 3) == Path(f"/dev/shm/hpcrl-{os.getuid()}-20260101-ab/a3")


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "-a"])
def test_run_ids_that_lead_elsewhere_are_refused(run_id):
    with pytest.raises(ValueError, match="no name of a folder"):
        attempt_folder(run_id, 1)


def test_what_a_living_process_claims_stays_and_the_rest_goes(tmp_path):
    mine, other = attempt_folder("mine", 1, tmp_path), attempt_folder("other", 1, tmp_path)
    stale = attempt_folder("mine", 0, tmp_path)
    stranger = tmp_path / "stranger"
    for folder in (stale, other, stranger):
        folder.mkdir(mode=0o700, parents=True)
    for folder in (mine, other):
        folder.parent.chmod(0o700)
    (other / "train.0").write_bytes(b"left")
    claim = Claim(mine)
    assert sorted(sweep(tmp_path)) == sorted([stale, other])
    assert mine.is_dir()
    assert not other.parent.exists()
    assert not remove_attempt(mine)
    claim.release()
    claim.release()
    assert remove_attempt(mine)
    assert list(tmp_path.iterdir()) == [stranger]
    assert remove_attempt(mine)


def test_only_this_user_can_look_in(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    claim = Claim(folder)
    assert {path.stat().st_mode & 0o777 for path in (folder.parent, folder)} == {0o700}
    claim.release()


def test_a_folder_that_others_can_write_is_refused_and_left_alone(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    folder.mkdir(parents=True)
    folder.parent.chmod(0o777)
    with pytest.raises(DataPlaneError, match="mode 777, expected user"):
        Claim(folder)
    assert sweep(tmp_path) == []
    assert folder.is_dir()


def test_a_link_to_elsewhere_is_never_followed(tmp_path):
    target = tmp_path / "target"
    (target / "a1").mkdir(parents=True)
    target.chmod(0o700)
    folder = attempt_folder("r", 1, tmp_path)
    folder.parent.symlink_to(target)
    with pytest.raises(DataPlaneError, match="cannot make"):
        Claim(folder)
    assert sweep(tmp_path) == []
    assert (target / "a1").is_dir()


def test_no_place_for_shared_memory_is_said(tmp_path):
    with pytest.raises(DataPlaneError, match="there is no directory"):
        Claim(attempt_folder("r", 1, tmp_path / "nothing"))


def test_a_pid_that_is_used_again_owns_nothing(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    claim = Claim(folder)
    claim.release()
    record = folder / "owners" / f"{os.getpid()}.00000000"
    record.write_text(json.dumps({"pid": os.getpid(), "host": "here", "t": time.time()}))
    assert sweep(tmp_path) == [folder]


@pytest.mark.slow
def test_a_killed_owner_owns_nothing_and_the_other_still_does(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    with running(HOLD, folder) as first, running(HOLD, folder) as second:
        first.kill()
        first.wait()
        assert sweep(tmp_path) == []
        assert len(list((folder / "owners").iterdir())) == 1
        second.kill()
        second.wait()
        assert sweep(tmp_path) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_claims_and_sweeps_at_once_never_take_a_claimed_folder(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    end = threading.Event()
    swept = 0

    def sweep_all() -> None:
        nonlocal swept
        while not end.is_set():
            swept += len(sweep(tmp_path))

    sweeper = threading.Thread(target=sweep_all)
    sweeper.start()
    try:
        began = time.monotonic()
        while swept < 20 and time.monotonic() < began + 60:
            claim = Claim(folder)
            (folder / "mine").touch()
            assert (folder / "mine").exists()
            claim.release()
    finally:
        end.set()
        sweeper.join()
    sweep(tmp_path)
    assert swept >= 20
    assert list(tmp_path.iterdir()) == []


def test_usage_counts_what_each_writer_has(tmp_path):
    folder = attempt_folder("r", 1, tmp_path)
    assert usage(folder).files == 0
    writers = [SegmentWriter(folder, who, 1, "n", segment_bytes=2**16) for who in ("a.0", "b.0")]
    for writer in writers:
        writer.write([b"x"])
    writers[1].write([b"x" * 2**17])
    found = usage(folder)
    assert found.files == 3
    assert found.by_writer["a.0"] == 2**16
    assert found.by_writer["b.0"] > 2**16 + 2**17
    assert found.bytes == sum(found.by_writer.values())
    for writer in writers:
        writer.close()


@pytest.mark.slow
def test_whoever_is_killed_whenever_nothing_is_left(tmp_path):
    source = random.Random(0)
    for attempt in range(4):
        mine, other = attempt_folder("mine", attempt, tmp_path), attempt_folder("other", attempt, tmp_path)
        with running(WORK, mine, "a.0") as first, running(WORK, mine, "b.0") as second, running(WORK, other, "a.0") as third:
            time.sleep(source.uniform(0, 0.3))
            for process in (first, second):
                process.kill()
                process.wait()
            assert usage(mine).files > 0
            assert sweep(tmp_path) == [mine]
            assert usage(other).files > 0
            assert third.poll() is None
        assert sweep(tmp_path) == [other]
        assert list(tmp_path.iterdir()) == []


def test_what_an_attempt_shares_on_a_node_goes_with_the_last_process_that_needs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcrl.dataplane.shm.folders.choose_root", lambda need, fallback: tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    attempt = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()
    with kept_folder(attempt) as folder:
        assert folder == shared_folder(attempt)
        with kept_folder(attempt):
            (folder / "weights").mkdir()
        assert (folder / "weights").is_dir()
    assert list((tmp_path / "shm").iterdir()) == []


def test_weights_of_killed_processes_go_with_the_next_run(tmp_path):
    attempt = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()
    (tmp_path / "shm").mkdir()
    with running(KEEP, attempt.run.path, tmp_path / "shm") as one, running(KEEP, attempt.run.path, tmp_path / "shm") as other:
        one.kill()
        one.wait()
        assert sweep(tmp_path / "shm") == []
        other.kill()
        other.wait()
        (left,) = sweep(tmp_path / "shm")
        assert left.name == "a1"
    assert list((tmp_path / "shm").iterdir()) == []
