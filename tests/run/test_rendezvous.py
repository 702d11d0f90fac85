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


def test_waiting_has_a_deadline_and_hears_the_stop(tmp_path: Path):
    with pytest.raises(DeadlineExceeded, match="'a'"):
        Rendezvous(tmp_path, "r").wait("a", seconds=0.05)
    stop = StopFlag()
    stop.set()
    with pytest.raises(Stopped):
        Rendezvous(tmp_path, "r", stop).wait("a", seconds=10)
