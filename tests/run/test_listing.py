from __future__ import annotations

import os
from pathlib import Path

from hpcrl.run import listing
from hpcrl.run.listing import Listing


def test_names_come_and_go_and_those_being_written_are_left_out(tmp_path: Path):
    names = Listing(tmp_path)
    assert names.read() == frozenset()
    (tmp_path / "a").touch()
    (tmp_path / ".b").touch()
    assert names.read() == {"a"}
    (tmp_path / ".b").rename(tmp_path / "b")
    assert names.read() == {"a", "b"}
    (tmp_path / "a").unlink()
    assert names.read() == {"b"}


def test_a_folder_that_is_not_there_yet_is_empty(tmp_path: Path):
    names = Listing(tmp_path / "later")
    assert names.read() == frozenset()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a").touch()
    assert names.read() == {"a"}


def test_a_change_that_the_time_of_change_does_not_show_is_seen_while_that_time_is_new(tmp_path: Path):
    names = Listing(tmp_path)
    (tmp_path / "a").touch()
    assert names.read() == {"a"}
    held = tmp_path.stat().st_mtime_ns
    (tmp_path / "b").touch()
    os.utime(tmp_path, ns=(held, held))
    assert names.read() == {"a", "b"}


def test_a_folder_that_stays_as_it_is_is_not_listed_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(listing, "SETTLED_S", 0.0)
    listed = []
    real = os.listdir
    monkeypatch.setattr(listing.os, "listdir", lambda folder: listed.append(folder) or real(folder))
    names = Listing(tmp_path)
    (tmp_path / "a").touch()
    first = names.read()
    assert [names.read() is first for _ in range(5)] == [True] * 5
    assert len(listed) == 1
    (tmp_path / "b").touch()
    os.utime(tmp_path, ns=(1, 1))
    assert names.read() == {"a", "b"}
