from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, DoneRecords, write_done
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.supervise.children import Child, tail
from hpcrl.supervise.drain import DrainFlag, ask_to_drain, drain_of
from hpcrl.supervise.watch import watch

# A real process that says it is up, then does what its argument asks for.
PLAYER = """
import json, os, signal, sys, time
what, folder, name = json.loads(sys.argv[1])
asked = []
signal.signal(signal.SIGUSR2, (lambda *_: None) if what == "deaf" else (lambda *_: asked.append(1)))
if what == "weak":
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
def record(status, code=0):
    path = os.path.join(folder, "done", name + ".json")
    with open(path + ".new", "w") as file:
        json.dump({"process": name, "status": status, "code": code, "error": "", "host": "h", "t": time.time()}, file)
    os.rename(path + ".new", path)
print("up", flush=True)
open(os.path.join(folder, name + ".up"), "w").close()
if what == "work":
    record("done")
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


def start(attempt: Attempt, name: str, what: str, *, service: bool = False) -> Child:
    import json

    env = {**os.environ, "PYTHONPATH": str(attempt.run.path.parent)}
    argument = json.dumps([what, str(attempt.path), name])
    child = Child.start(name, "player", argument, env=env, log=attempt.log(name), service=service)
    wait_for(f"{name} to be up", lambda: True if (attempt.path / f"{name}.up").exists() else None, seconds=20)
    return child


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
    assert str(attempt.log("a.0")) in failure.error
    assert "up" in failure.error


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


def test_tail_gives_the_last_lines_and_says_why_it_cannot(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("\n".join(str(n) for n in range(100_000)))
    assert tail(log, 2) == "99998\n99999"
    assert "No such file" in tail(tmp_path / "none")
    (tmp_path / "empty").touch()
    assert tail(tmp_path / "empty") == "(the log is empty)"
