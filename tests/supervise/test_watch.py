from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.supervise.children import Child
from hpcrl.supervise.drain import DrainFlag, ask_to_drain, drain_of
from hpcrl.supervise.restarts import Restarts
from hpcrl.supervise.watch import watch
from hpcrl.tracking.journal import JournalReader

# A real process that says it is up, then does what its argument asks for.
PLAYER = """
import json, os, signal, sys, time
what, folder, name, incarnation = json.loads(sys.argv[1])
asked = []
signal.signal(signal.SIGUSR2, (lambda *_: None) if what == "deaf" else (lambda *_: asked.append(1)))
if what == "weak":
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
def record(status, code=0):
    path = os.path.join(folder, "done", name + ".json")
    beside = os.path.join(os.path.dirname(path), ".beside." + os.path.basename(path))
    with open(beside, "w") as file:
        json.dump({"process": name, "status": status, "code": code, "error": "", "host": "h", "t": time.time()}, file)
    os.rename(beside, path)
print("up", flush=True)
open(os.path.join(folder, f"{name}.{incarnation}.up"), "w").close()
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "killed_once":
    what = "work" if incarnation else "sleep"
if what == "work":
    record("done")
elif what == "sleep":
    os.fork() or time.sleep(60)
    time.sleep(60)
elif what == "fail":
    print("the reason", flush=True)
    record("failed", 7)
    sys.exit(7)
elif what == "crash":
    print("about to crash", flush=True)
    sys.exit(3)
else:
    while not asked:
        time.sleep(0.01)
    record("stopped")
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    (tmp_path / "player.py").write_text(PLAYER)
    return RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()


def start(attempt: Attempt, name: str, what: str, *, service: bool = False, restarts: Restarts | None = None) -> Child:
    env = {**os.environ, "PYTHONPATH": str(attempt.run.path.parent)}

    def argument(incarnation: int) -> str:
        return json.dumps([what, str(attempt.path), name, incarnation])

    child = Child.start(name, "player", argument, env=env, log=attempt.log(name), service=service, restarts=restarts)
    is_up(attempt, name)
    return child


def is_up(attempt: Attempt, name: str, incarnation: int = 0) -> None:
    """Returns once it is."""
    up = attempt.path / f"{name}.{incarnation}.up"
    wait_for(f"{name} to be up", lambda: True if up.exists() else None, seconds=20)


def restarts_of(attempt: Attempt, who: str = "ignitor.0") -> list[dict[str, Any]]:
    """What the ignitor's journal says of processes that were started again."""
    return [r for writer, r in JournalReader(attempt.journal).read() if r["kind"] == "restart" and writer == who]


def test_services_are_stopped_once_all_workers_are_done(attempt: Attempt):
    children = [start(attempt, "a.0", "work"), start(attempt, "b.0", "work"), start(attempt, "s.0", "wait", service=True)]
    assert watch(children, frozenset({"a.0", "b.0"}), attempt, stop=StopFlag(), drain_s=10) is None
    assert not any(psutil.pid_exists(child.popen.pid) for child in children)
    assert DoneRecords(attempt).read()["s.0"].status == "stopped"


def test_the_queue_outlives_every_role_that_is_a_service_on_any_slot(attempt: Attempt):
    roles = frozenset({"a.0", "s.0", "far.0"})
    children = [start(attempt, "a.0", "work")] + [start(attempt, name, "wait", service=True) for name in ("queue.0", "s.0")]
    ended: list[DoneRecord | None] = []
    watching = threading.Thread(
        target=lambda: ended.append(watch(children, frozenset({"a.0"}), attempt, stop=StopFlag(), drain_s=10, roles=roles))
    )
    watching.start()
    wait_for("the role service to end", lambda: DoneRecords(attempt).read().get("s.0"), seconds=10)
    watching.join(0.5)
    assert watching.is_alive()
    assert "queue.0" not in DoneRecords(attempt).read()
    write_done(attempt, DoneRecord(process="far.0", status="stopped"))
    watching.join(10)
    assert ended == [None]
    assert DoneRecords(attempt).read()["queue.0"].status == "stopped"


def test_a_failure_asks_the_other_workers_to_stop_and_is_returned(attempt: Attempt):
    children = [start(attempt, "a.0", "wait"), start(attempt, "b.0", "fail")]
    failure = watch(children, frozenset({"a.0", "b.0"}), attempt, stop=StopFlag(), drain_s=10)
    assert failure is not None
    assert (failure.process, failure.code) == ("b.0", 7)
    assert DoneRecords(attempt).read()["a.0"].status == "stopped"


def test_a_failure_on_another_slot_ends_this_one(attempt: Attempt):
    child = start(attempt, "a.0", "wait")
    write_done(attempt, DoneRecord(process="far.0", status="failed", code=5, error="e"))
    failure = watch([child], frozenset({"a.0", "far.0"}), attempt, stop=StopFlag(), drain_s=10)
    assert failure is not None
    assert failure.code == 5
    assert DoneRecords(attempt).read()["a.0"].status == "stopped"


def test_a_worker_that_was_stopped_on_another_slot_ends_this_one(attempt: Attempt):
    child = start(attempt, "a.0", "wait")
    write_done(attempt, DoneRecord(process="far.0", status="stopped"))
    assert watch([child], frozenset({"a.0", "far.0"}), attempt, stop=StopFlag(), drain_s=10) is None
    assert DoneRecords(attempt).read()["a.0"].status == "stopped"


@pytest.mark.parametrize(("ending", "code"), [("crash", 3), ("kill", 137)])
def test_a_process_that_leaves_no_record_gets_one_with_its_last_lines(attempt: Attempt, ending: str, code: int):
    child = start(attempt, "a.0", "crash" if ending == "crash" else "wait")
    if ending == "kill":
        os.kill(child.popen.pid, signal.SIGKILL)
    failure = watch([child], frozenset({"a.0"}), attempt, stop=StopFlag(), drain_s=10)
    assert failure is not None
    assert failure.code == code
    assert failure.killed_by == ("SIGKILL" if ending == "kill" else "")
    assert str(attempt.log("a.0")) in failure.error
    assert "up" in failure.error
    assert restarts_of(attempt) == []


def test_what_is_killed_is_started_again_and_the_run_goes_on(attempt: Attempt):
    children = [start(attempt, "a.0", "killed_once", restarts=Restarts(1)), start(attempt, "b.0", "wait", service=True)]
    left = psutil.Process(children[0].popen.pid)
    wait_for("its own child", lambda: left.children() or None, seconds=20)
    (orphan,) = left.children()
    left.kill()
    assert watch(children, frozenset({"a.0"}), attempt, stop=StopFlag(), drain_s=10, who="ignitor.7") is None
    assert DoneRecords(attempt).read()["a.0"].status == "done"
    (restart,) = restarts_of(attempt, "ignitor.7")
    assert (restart["process"], restart["signal"], restart["incarnation"]) == ("a.0", "SIGKILL", 1)
    assert attempt.log("a.0").read_text() == "up\nup\n"
    # Whoever takes in orphans may be slow to take note of its end.
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, "it has ended with who started it"


def test_a_service_that_is_killed_is_back_within_a_moment(attempt: Attempt):
    children = [start(attempt, "q.0", "wait", service=True, restarts=Restarts(1)), start(attempt, "a.0", "wait")]
    stop, ended = StopFlag(), list[DoneRecord | None]()
    watching = threading.Thread(
        target=lambda: ended.append(watch(children, frozenset({"a.0"}), attempt, stop=stop, drain_s=10))
    )
    watching.start()
    # Long enough for the pauses between two looks to have grown to their longest.
    watching.join(3)
    os.kill(children[0].popen.pid, signal.SIGSEGV)
    is_up(attempt, "q.0", 1)
    stop.set()
    watching.join(20)
    assert ended == [None]
    assert {record.status for record in DoneRecords(attempt).read().values()} == {"stopped"}


def test_what_is_killed_again_and_again_ends_the_run(attempt: Attempt):
    child = start(attempt, "a.0", "killed", restarts=Restarts(2))
    failure = watch([child], frozenset({"a.0"}), attempt, stop=StopFlag(), drain_s=10)
    assert failure is not None
    assert (failure.code, failure.killed_by) == (137, "SIGKILL")
    assert "killed by SIGKILL and was started again 2 times in this attempt" in failure.error
    assert [restart["incarnation"] for restart in restarts_of(attempt)] == [1, 2]


def test_a_data_plane_that_is_killed_again_and_again_fails_for_good(attempt: Attempt):
    children = [start(attempt, "queue.0", "killed", service=True, restarts=Restarts(100, fatal=True))]
    children.append(start(attempt, "a.0", "wait"))
    failure = watch(children, frozenset({"a.0"}), attempt, stop=StopFlag(), drain_s=10)
    assert failure is not None
    assert (failure.process, failure.killed_by) == ("queue.0", "")
    assert "5 times within 10 s" in failure.error
    assert len(restarts_of(attempt)) == 5


@pytest.mark.parametrize("why", ["asked", "failed elsewhere"])
def test_nothing_is_started_again_while_the_run_is_ending(attempt: Attempt, why: str):
    children = [start(attempt, "a.0", "killed", restarts=Restarts(3)), start(attempt, "b.0", "wait")]
    children[0].popen.wait()
    stop = StopFlag()
    if why == "asked":
        stop.set()
    else:
        write_done(attempt, DoneRecord(process="far.0", status="failed", code=5, error="e", t=time.time() - 60))
    failure = watch(children, frozenset({"a.0", "b.0"}), attempt, stop=stop, drain_s=10)
    assert failure is not None
    assert failure.process == ("a.0" if why == "asked" else "far.0")
    assert restarts_of(attempt) == []


def test_what_the_ignitor_itself_kills_is_no_reason_for_another_attempt(attempt: Attempt):
    child, stop = start(attempt, "a.0", "deaf"), StopFlag()
    stop.set()
    failure = watch([child], frozenset({"a.0"}), attempt, stop=stop, drain_s=0.2)
    assert failure is not None
    assert failure.killed_by == ""
    assert "SIGKILL, which its ignitor sent" in failure.error


def test_draining_has_a_deadline(attempt: Attempt):
    children = [start(attempt, "a.0", "deaf"), start(attempt, "b.0", "wait")]
    stop = StopFlag()
    stop.set()
    started = time.monotonic()
    failure = watch(children, frozenset({"a.0", "b.0"}), attempt, stop=stop, drain_s=1.0)
    assert time.monotonic() - started < 8
    assert failure is not None
    assert failure.process == "a.0"
    assert DoneRecords(attempt).read()["b.0"].status == "stopped"
    assert not any(psutil.pid_exists(child.popen.pid) for child in children)


def test_a_request_to_drain_is_heard_while_watching(attempt: Attempt):
    child = start(attempt, "a.0", "wait")
    stop = StopFlag()
    threading.Timer(0.2, stop.set).start()
    assert watch([child], frozenset({"a.0"}), attempt, stop=stop, drain_s=10) is None


def test_to_die_of_the_request_to_stop_is_no_failure(attempt: Attempt):
    child = start(attempt, "a.0", "weak")
    stop = StopFlag()
    stop.set()
    assert watch([child], frozenset({"a.0"}), attempt, stop=stop, drain_s=10) is None
    assert DoneRecords(attempt).read()["a.0"].status == "stopped"


def test_the_request_of_the_attempt_shortens_the_deadline(attempt: Attempt):
    child = start(attempt, "a.0", "deaf")
    stop = StopFlag()
    stop.set()
    ask_to_drain(attempt, "preempted", 0.5)
    started = time.monotonic()
    assert watch([child], frozenset({"a.0"}), attempt, stop=stop, drain_s=60) is not None
    assert time.monotonic() - started < 8


def test_a_signal_is_told_to_all_even_after_a_failure_that_it_caused(attempt: Attempt):
    write_done(attempt, DoneRecord(process="far.0", status="failed", code=1, error="died of the signal"))
    child, stop = start(attempt, "a.0", "wait"), DrainFlag(attempt, "ignitor.0", 10.0)
    before = signal.getsignal(signal.SIGTERM)
    stop.hear([signal.SIGTERM])
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch([child], frozenset({"a.0", "far.0"}), attempt, stop=stop, drain_s=10) is not None
    finally:
        signal.signal(signal.SIGTERM, before)
    request = drain_of(attempt)
    assert request is not None
    assert "SIGTERM to ignitor.0" in request.reason
