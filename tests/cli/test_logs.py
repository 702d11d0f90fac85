import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli import logs as logs_module
from hpcrl.cli.logs import tail_offset
from hpcrl.cli.main import cli
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done

NAMES = ("rollout.0", "rollout.1", "rollout.10", "trainer.0", "ignitor.0")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    run = RunDirectory.create(tmp_path / "run", name="tiny", recipe_json=json.dumps({"groups": {}}))
    attempt = run.new_attempt()
    for name in NAMES:
        attempt.log(name).write_text("".join(f"{name} line {n}\n" for n in range(30)))
    return attempt


def invoke(attempt: Attempt, *arguments: str):
    return CliRunner().invoke(cli, ["logs", str(attempt.run.path), *arguments])


def test_one_process_is_shown_as_it_is(attempt: Attempt) -> None:
    assert invoke(attempt, "trainer.0", "-n", "2").stdout == "trainer.0 line 28\ntrainer.0 line 29\n"
    assert len(invoke(attempt, "trainer.0").stdout.splitlines()) == 20
    assert invoke(attempt, "trainer", "-n", "1").stdout == "trainer.0 line 29\n"
    assert invoke(attempt, "trainer.0", "-n", "0").stdout == ""


def test_several_have_their_name_before_each_line_in_order_of_rank(attempt: Attempt) -> None:
    assert invoke(attempt, "rollout", "-n", "1").stdout.splitlines() == [
        "rollout.0 | rollout.0 line 29",
        "rollout.1 | rollout.1 line 29",
        "rollout.10 | rollout.10 line 29",
    ]
    everything = invoke(attempt, "-n", "1").stdout.splitlines()
    assert [line.split()[0] for line in everything] == ["rollout.0", "rollout.1", "rollout.10", "trainer.0", "ignitor.0"]


def test_an_unknown_process_lists_the_nearest(attempt: Attempt) -> None:
    error = invoke(attempt, "triner.0").exception
    assert isinstance(error, CheckFailed)
    assert "no log of 'triner.0'; nearest: trainer.0" in str(error)
    assert "rollout.1" in str(invoke(attempt, "rollout.2").exception)


def test_an_earlier_attempt(attempt: Attempt) -> None:
    later = attempt.run.new_attempt()
    assert "no logs yet" in str(invoke(attempt).exception)
    later.log("trainer.0").write_text("second life\n")
    assert invoke(attempt).stdout == "second life\n"
    assert "line 29" in invoke(attempt, "trainer.0", "--attempt", "1").stdout


def test_odd_bytes_and_a_line_without_end_are_shown(attempt: Attempt) -> None:
    attempt.log("trainer.0").write_bytes(b"good\n\xff\xfe bad \x00\nhalf")
    assert invoke(attempt, "trainer.0").stdout.splitlines() == ["good", "\ufffd\ufffd bad \x00", "half"]
    attempt.log("trainer.0").write_bytes(b"")
    assert invoke(attempt, "trainer.0").stdout == ""


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 65_536])
@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "aaa\n\nbbb\nc\n"])
def test_the_tail_is_the_last_lines_whatever_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, text: str
) -> None:
    monkeypatch.setattr(logs_module, "CHUNK", chunk)
    path = tmp_path / "log"
    path.write_text(text)
    for count in range(6):
        wanted = "".join(text.splitlines(keepends=True)[-count:]) if count else ""
        assert text[tail_offset(path, count) :] == wanted


def follow(attempt: Attempt, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "hpcrl.cli.main", "logs", str(attempt.run.path), "-f", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # As at a terminal; what a shell starts in the background ignores Ctrl-C, and its children too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


@pytest.mark.slow
def test_following_shows_new_lines_and_new_logs_and_ends_with_the_processes(attempt: Attempt) -> None:
    process = follow(attempt, "rollout", "-n", "1")
    try:
        assert [process.stdout.readline().split()[0] for _ in range(3)] == ["rollout.0", "rollout.1", "rollout.10"]
        append(attempt.log("rollout.1"), "half")
        append(attempt.log("rollout.0"), "new\n")
        assert process.stdout.readline() == "rollout.0 | new\n"
        append(attempt.log("rollout.1"), " a line\n")
        assert process.stdout.readline() == "rollout.1 | half a line\n"
        attempt.log("rollout.3").write_text("came later\nfrom its first line\n")
        assert process.stdout.readline() == "rollout.3 | came later\n"
        assert process.stdout.readline() == "rollout.3 | from its first line\n"
        append(attempt.log("rollout.0"), "the last words\n")
        for name in ("rollout.0", "rollout.1", "rollout.3", "rollout.10"):
            write_done(attempt, DoneRecord(process=name, status="done"))
        output, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, error) == (0, "rollout.0 | the last words\n", "")


@pytest.mark.slow
def test_following_ends_with_ctrl_c(attempt: Attempt) -> None:
    process = follow(attempt, "trainer.0", "-n", "1")
    try:
        assert process.stdout.readline() == "trainer.0 line 29\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in error
    assert output.strip() == ""
