from __future__ import annotations

from pathlib import Path

from hpcrl.engines.sglang.words import last_words


def test_the_last_traceback_is_told_and_not_what_follows_it(tmp_path: Path):
    log = tmp_path / "log"
    noise = 'nanobind: leaked 4 instances!\n - leaked type "x"\n'
    log.write_text(
        "old\nTraceback (most recent call last):\n  one\nE: 1\nTraceback (most recent call last):\n  two\nE: 2\n" + noise * 40
    )
    assert last_words(log) == "Traceback (most recent call last):\n  two\nE: 2"


def test_without_one_the_last_lines_are_told(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("\n".join(str(n) for n in range(100)))
    assert last_words(log).splitlines() == [str(n) for n in range(70, 100)]


def test_of_a_long_traceback_the_middle_is_left_out(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n" + "\n".join(f"  {n}" for n in range(100)) + "\nE: it")
    words = last_words(log).splitlines()
    assert len(words) == 30
    assert words[:2] == ["Traceback (most recent call last):", "…"]
    assert words[-1] == "E: it"
