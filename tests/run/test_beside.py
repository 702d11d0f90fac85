"""A process that works for another and ends with it."""

import os
import signal
import sys

import pytest

from hpcrl.run.beside import Beside
from hpcrl.run.stop import wait_for

ECHO = """
import sys
from multiprocessing.connection import Connection
said = Connection(int(sys.argv[1]))
try:
    while True:
        said.send_bytes(said.recv_bytes() + b"!")
except EOFError:
    pass
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    (tmp_path / "echo_beside.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    beside = Beside("echo_beside")
    yield beside
    beside.close()


def test_it_answers_and_signals_to_the_group_are_not_its(echo):
    echo.send(b"a")
    assert echo.receive() == b"a!"
    os.kill(echo.pid, signal.SIGTERM)
    os.kill(echo.pid, signal.SIGINT)
    echo.send(b"b")
    assert echo.receive() == b"b!"
    assert echo.alive


def test_one_that_is_killed_says_nothing_more(echo):
    os.kill(echo.pid, signal.SIGKILL)
    assert echo.receive() is None
    assert echo.how_it_ended() == "was killed by signal 9"
    echo.send(b"c")
    assert not echo.alive


def test_it_is_gone_after_the_close_and_a_second_one_is_no_error(echo):
    pid = echo.pid
    echo.close()
    echo.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_when_its_starter_does(echo):
    echo.send(b"a")
    assert echo.receive() == b"a!"
    echo._connection.close()
    wait_for("the process to end", lambda: True if not echo.alive else None, seconds=30)
    assert echo.how_it_ended() == "ended with code 0"
