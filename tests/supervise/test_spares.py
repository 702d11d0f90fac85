"""Processes that begin as forks of a spare: the same as any other, only sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.supervise.children import Child
from hpcrl.supervise.restarts import Restarts
from hpcrl.supervise.spare import Warm
from hpcrl.supervise.spares import Spares
from hpcrl.supervise.watch import watch

# Says what it is like, then does what it is told.
CHILD = """
import json, os, random, signal, sys, time
what, folder, incarnation = json.loads(sys.argv[1])
def name(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "incarnation": incarnation, "argv": sys.argv[1:],
    "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(),
    "env": dict(os.environ), "imported": "colorsys" in sys.modules, "stdin": os.readlink("/proc/self/fd/0"),
    "blocked": sorted(int(n) for n in mask), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "threads": len(os.listdir("/proc/self/task")), "open": [name(n) for n in range(256) if name(n)],
    "random": [random.random(), sys.modules["numpy"].random.random() if "numpy" in sys.modules else 0],
}), flush=True)
if what == "exit":
    sys.exit(7)
if what == "raise":
    raise ValueError("the reason")
if what == "parent":
    from hpcrl.supervise.linux import die_with_parent
    die_with_parent(signal.SIGKILL)
if what == "stop":
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
while what != "end":
    time.sleep(0.01)
"""


class Slot:
    """Starts processes as an ignitor does, with spares that are made at once."""

    def __init__(self, folder: Path, warm: Warm | None = None) -> None:
        (folder / "child.py").write_text(CHILD)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])])
        self.folder, self.env = folder, {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "3"}
        self.spares = Spares(folder / "spares.log", calm_s=0.0)
        self.spares.expect(self.env, warm or Warm(modules=("colorsys",), room=200))
        self.children: list[Child] = []

    def tend(self) -> None:
        self.spares.tend([child.popen.pid for child in self.children])

    def await_spares(self) -> None:
        def look() -> bool | None:
            self.tend()
            return self.spares.complete or None

        wait_for("the spares", look, seconds=60)

    def start(self, what: str, restarts: int = 0, **env: str) -> Child:
        child = Child.start(
            "a.0",
            "child",
            lambda incarnation: json.dumps([what, str(self.folder), incarnation]),
            env={**self.env, **env},
            log=self.folder / "log",
            service=False,
            restarts=Restarts(restarts),
            spares=self.spares,
        )
        self.children.append(child)
        return child

    def said(self, count: int = 1) -> list[dict[str, Any]]:
        """What the first so many processes have said of themselves."""

        def look() -> list[dict[str, Any]] | None:
            lines = [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]
            return lines if len(lines) >= count else None

        return wait_for("it to speak", look, seconds=60)

    def close(self) -> None:
        for child in self.children:
            child.kill()
        self.spares.close()


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    held = Slot(tmp_path)
    yield held
    held.close()


def test_a_fork_is_like_a_process_that_was_started(slot: Slot):
    plain = slot.start("sleep")
    slot.said()
    slot.await_spares()
    forked = slot.start("sleep")
    one, other = slot.said(2)
    assert (one.pop("imported"), other.pop("imported")) == (False, True)
    for said, child in ((one, plain), (other, forked)):
        assert said.pop("pid") == said.pop("session") == child.popen.pid
        said.pop("random")
    assert one == other
    assert (one["parent"], one["name"], one["main"]) == (os.getpid(), "__main__", True)
    assert one["stdin"] == "/dev/null"
    shown = [[part.rstrip() for part in psutil.Process(child.popen.pid).cmdline()] for child in (plain, forked)]
    assert shown[0] == shown[1], "for who looks at it with ps"


def test_forks_draw_their_own_random_numbers(tmp_path: Path):
    slot = Slot(tmp_path, Warm(modules=("numpy",)))
    slot.await_spares()
    for _ in range(2):
        slot.start("end").popen.wait(20)
    one, other = (said["random"] for said in slot.said(2))
    slot.close()
    assert one[0] != other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize(("what", "code"), [("end", 0), ("exit", 7), ("raise", 1), ("kill", 137), ("stop", 0)])
def test_the_end_of_a_fork_is_seen_as_that_of_any_other(slot: Slot, what: str, code: int):
    slot.await_spares()
    child = slot.start("sleep" if what == "kill" else what)
    assert slot.said()[0]["imported"]
    if what == "kill":
        os.kill(child.popen.pid, signal.SIGKILL)
    if what == "stop":
        child.ask_to_stop()
    child.popen.wait(20)
    assert child.ended() == code
    child.ask_to_stop()
    assert ("ValueError: the reason" in (slot.folder / "log").read_text()) == (what == "raise")
    with pytest.raises(ProcessLookupError):
        os.kill(child.popen.pid, 0)


def test_signals_that_come_at_once_are_heard_later(slot: Slot):
    slot.await_spares()
    child = slot.start("stop")
    # By now it may not have run a line of its own.
    child.ask_to_stop()
    child.popen.wait(20)
    assert child.ended() == 0
    assert len(slot.said()) == 1


def test_a_fork_that_runs_is_waited_for_no_longer_than_asked(slot: Slot):
    slot.await_spares()
    child = slot.start("sleep")
    with pytest.raises(subprocess.TimeoutExpired):
        child.popen.wait(0.05)
    child.kill()
    assert (child.ended(), child.killed) == (137, True)


def test_one_spare_serves_any_number_of_starts(slot: Slot):
    slot.await_spares()
    spares = slot.spares.pids
    child = slot.start("sleep", restarts=5)
    for count in range(5):
        slot.said(count + 1)
        os.kill(child.popen.pid, signal.SIGKILL)
        child.popen.wait(20)
        child.start_again()
    said = slot.said(6)
    assert [one["incarnation"] for one in said] == list(range(6))
    assert all(one["imported"] for one in said)
    assert slot.spares.pids == spares


def test_another_environment_has_another_spare(slot: Slot):
    other = {**slot.env, "OMP_NUM_THREADS": "1"}
    slot.spares.expect(other, Warm(modules=("colorsys",)))
    slot.await_spares()
    assert len(slot.spares.pids) == 2
    slot.start("end")
    slot.start("end", OMP_NUM_THREADS="1")
    slot.start("end", OMP_NUM_THREADS="2")
    found = {said["env"]["OMP_NUM_THREADS"]: said["imported"] for said in slot.said(3)}
    assert found == {"3": True, "1": True, "2": False}


def test_without_a_spare_that_lives_the_start_is_an_ordinary_one(slot: Slot):
    slot.await_spares()
    (pid,) = slot.spares.pids
    os.kill(pid, signal.SIGKILL)
    slot.start("end")
    assert [said["imported"] for said in slot.said()] == [False]
    slot.await_spares()
    assert slot.spares.pids != {pid}, "another was made"
    slot.start("end")
    assert [said["imported"] for said in slot.said(2)] == [False, True]


def test_a_spare_that_hangs_does_not_hold_up_a_start(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    slot.await_spares()
    (pid,) = slot.spares.pids
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("hpcrl.supervise.spares._ANSWER_S", 0.2)
    began = time.monotonic()
    slot.start("end")
    assert time.monotonic() - began < 5
    assert [said["imported"] for said in slot.said()] == [False]
    assert not psutil.pid_exists(pid)


def test_what_the_ignitor_gave_up_never_begins(slot: Slot, monkeypatch: pytest.MonkeyPatch):
    slot.await_spares()
    (pid,) = slot.spares.pids
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("hpcrl.supervise.spares._ANSWER_S", 0.2)
    # It goes on in the middle of being given up, as on a host that stood still.
    monkeypatch.setattr("hpcrl.supervise.spares._Spare.end", lambda self: os.kill(self.process.pid, signal.SIGCONT))
    slot.start("end")
    assert [said["imported"] for said in slot.said()] == [False]
    spare = psutil.Process(pid)
    wait_for("the fork to end", lambda: not spare.children() or None, seconds=20)
    time.sleep(0.2)
    assert len(slot.said()) == 1
    spare.kill()


@pytest.mark.parametrize(
    "source", ["import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"]
)
def test_a_spare_of_which_forks_would_not_work_is_not_used(tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture):
    (tmp_path / "unfit.py").write_text(source)
    slot = Slot(tmp_path, Warm(modules=("unfit",)))

    def told() -> bool | None:
        slot.tend()
        return "is of no use" in caplog.text or None

    wait_for("the verdict", told, seconds=60)
    assert "has started 1 threads" in caplog.text
    assert slot.spares.pids == set()
    assert slot.spares.complete, "no other is made"
    slot.start("end")
    assert len(slot.said()) == 1
    slot.close()


def test_what_cannot_be_imported_is_told_and_harms_nobody(tmp_path: Path):
    slot = Slot(tmp_path, Warm(modules=("colorsys", "no_such_module")))
    slot.await_spares()
    assert "No module named 'no_such_module'" in (tmp_path / "spares.log").read_text()
    slot.start("end")
    assert slot.said()[0]["imported"]
    slot.close()


def test_a_spare_is_made_only_when_all_is_calm(tmp_path: Path):
    slot = Slot(tmp_path)
    slot.spares.close()
    slot.spares = Spares(tmp_path / "spares.log", calm_s=1.0)
    slot.spares.expect(slot.env, Warm())
    child = slot.start("sleep", restarts=9)
    for _ in range(3):
        time.sleep(0.5)
        child.popen.kill()
        child.start_again()
        slot.tend()
        assert slot.spares.pids == set()
    time.sleep(1.1)
    slot.tend()
    assert len(slot.spares.pids) == 1
    slot.close()


def test_nothing_is_left_of_spares_that_are_closed(slot: Slot, shared_memory_left: Callable[[str], set[str]]):
    before = len(os.listdir("/proc/self/fd"))
    slot.await_spares()
    (pid,) = slot.spares.pids
    child = slot.start("stop")
    said = slot.said()[0]
    slot.spares.close()
    slot.spares.close()
    assert not psutil.pid_exists(pid)
    assert len(os.listdir("/proc/self/fd")) == before
    assert child.ended() is None, "what was forked goes on"
    child.ask_to_stop()
    child.popen.wait(20)
    assert child.ended() == 0
    assert not [name for name in said["open"] if name.startswith("socket:")]
    slot.start("end")
    assert [one["imported"] for one in slot.said(2)] == [True, False], "and no further one is forked"


@pytest.mark.parametrize(
    ("failure", "outlast", "stay"),
    [
        (None, True, False),
        (DoneRecord(process="far.0", status="failed", code=1, error="its own fault"), True, False),
        (DoneRecord(process="far.0", status="failed", code=137, error="killed", killed_by="SIGKILL"), False, False),
        (DoneRecord(process="far.0", status="failed", code=137, error="killed", killed_by="SIGKILL"), True, True),
    ],
)
def test_spares_stay_only_where_another_attempt_may_follow_on_this_host(
    slot: Slot, failure: DoneRecord | None, outlast: bool, stay: bool
):
    attempt = RunDirectory.create(slot.folder / "run", name="t", recipe_json="{}").new_attempt()
    slot.spares.outlast = outlast
    slot.await_spares()
    spares = slot.spares.pids
    write_done(attempt, failure or DoneRecord(process="far.0", status="done"))
    write_done(attempt, DoneRecord(process="a.0", status="done"))
    watch([], frozenset({"far.0", "a.0"}), attempt, stop=StopFlag(), drain_s=1.0, spares=slot.spares)
    assert slot.spares.pids == (spares if stay else set())


def test_a_request_to_stop_ends_spares_at_once(slot: Slot):
    attempt = RunDirectory.create(slot.folder / "run", name="t", recipe_json="{}").new_attempt()
    slot.await_spares()
    stop = StopFlag()
    stop.set()
    slot.spares.outlast = True
    watch([slot.start("stop")], frozenset({"a.0"}), attempt, stop=stop, drain_s=20.0, spares=slot.spares)
    assert slot.spares.pids == set()


IGNITOR = """
import sys
from pathlib import Path
from test_spares import Slot
slot = Slot(Path(sys.argv[1]))
slot.await_spares()
slot.start("stop")
print(*slot.spares.pids, slot.said()[0]["pid"], flush=True)
sys.stdin.read()
"""


def test_spares_and_forks_end_with_an_ignitor_that_is_killed(tmp_path: Path):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])])
    code = IGNITOR.replace('slot.start("stop")', 'slot.start("parent")')
    ignitor = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    assert ignitor.stdout is not None
    pids = [int(pid) for pid in ignitor.stdout.readline().split()]
    assert len(pids) == 2
    processes = [psutil.Process(pid) for pid in pids]
    ignitor.kill()
    ignitor.communicate()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive


def test_orphans_are_taken_in_and_taken_note_of(slot: Slot):
    # Its child becomes this process's once it ends, and ends itself then.
    code = "import subprocess, sys; print(subprocess.Popen(['cat'], stdin=0, stdout=2).pid, flush=True)"
    end, hold = os.pipe()
    found = subprocess.run([sys.executable, "-c", code], stdin=end, stdout=subprocess.PIPE, text=True, check=True)
    os.close(end)
    orphan = psutil.Process(int(found.stdout))
    assert orphan.ppid() == os.getpid()
    os.close(hold)
    wait_for("its end", lambda: orphan.status() == psutil.STATUS_ZOMBIE or None, seconds=20)
    slot.tend()
    assert not psutil.pid_exists(orphan.pid)
