from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpcrl.run.errors import DeadlineExceeded, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag


def test_values_published_by_others_are_gathered_in_order(tmp_path: Path):
    one, two = Rendezvous(tmp_path, "r"), Rendezvous(tmp_path, "r")
    threading.Timer(0.05, lambda: two.publish("slots/1", {"n": 1})).start()
    one.publish("slots/0", {"n": 0})
    assert one.gather(["slots/0", "slots/1"], seconds=10) == [{"n": 0}, {"n": 1}]


def test_a_value_of_another_run_is_not_there(tmp_path: Path):
    Rendezvous(tmp_path, "old").publish("a", 1)
    assert Rendezvous(tmp_path, "new").peek("a") is None


def test_values_of_several_folders_are_gathered_and_those_of_another_run_waited_for(tmp_path: Path):
    Rendezvous(tmp_path, "old").publish("plans/0", "stale")
    one = Rendezvous(tmp_path, "r")
    one.publish("queue.0", "top")
    threading.Timer(0.05, lambda: Rendezvous(tmp_path, "r").publish("plans/0", "fresh")).start()
    assert one.gather(["queue.0", "plans/0", "queue.0"], seconds=10) == ["top", "fresh", "top"]
    with pytest.raises(DeadlineExceeded, match="'x/0'"):
        one.gather(["x/0"], seconds=0.05)


def test_what_is_published_in_a_folder_is_named(tmp_path: Path):
    one = Rendezvous(tmp_path, "r")
    assert one.published("slots") == frozenset()
    one.publish("slots/3", {})
    assert one.published("slots") == {"3"}


def test_waiting_has_a_deadline_and_hears_the_stop(tmp_path: Path):
    with pytest.raises(DeadlineExceeded, match="'a'"):
        Rendezvous(tmp_path, "r").wait("a", seconds=0.05)
    stop = StopFlag()
    stop.set()
    with pytest.raises(Stopped):
        Rendezvous(tmp_path, "r", stop).wait("a", seconds=10)
