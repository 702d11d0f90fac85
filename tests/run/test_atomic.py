from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from hpcrl.run.atomic import link, write_json, write_text


def test_a_reader_never_sees_half_a_file(tmp_path: Path):
    path = tmp_path / "f"
    texts = ["a" * 100_000, "b" * 100_000]
    write_text(path, texts[0])
    done = threading.Event()

    def write() -> None:
        for n in range(60):
            write_text(path, texts[n % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    thread.join()
    assert seen <= set(texts)


def test_a_failed_write_leaves_the_old_file_and_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "f"
    write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 2})
    assert os.listdir(tmp_path) == ["f"]
    assert '"a": 1' in path.read_text()


def test_a_link_is_replaced(tmp_path: Path):
    link(tmp_path / "latest", "one")
    link(tmp_path / "latest", "two")
    assert os.readlink(tmp_path / "latest") == "two"
