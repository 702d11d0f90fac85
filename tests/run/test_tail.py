from __future__ import annotations

from pathlib import Path

from hpcrl.run.tail import tail


def test_tail_gives_the_last_lines_and_says_why_it_cannot(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("\n".join(str(n) for n in range(100_000)))
    assert tail(log, 2) == "99998\n99999"
    assert "No such file" in tail(tmp_path / "none")
    (tmp_path / "empty").touch()
    assert tail(tmp_path / "empty") == "(the log is empty)"
