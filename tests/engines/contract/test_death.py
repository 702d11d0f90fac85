"""An engine that is killed is found dead, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hpcrl.engines.client import EngineClient, EngineUnavailable
from hpcrl.engines.completion import Sampling
from hpcrl.engines.sglang.server import SglangServer
from hpcrl.run.errors import RoleFailed, RoleLost

pytestmark = pytest.mark.slow

WAIT_S = 120.0
KEY = "the-key-of-this-run"
_EMBEDDED = """
import sys, time
from pathlib import Path
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
print(EmbeddedServer(EngineSettings(model_path=Path(sys.argv[1]), threads=1), api_key=sys.argv[2]).start(), flush=True)
time.sleep(600)
"""
# As a role does, in a process of its own.
_SGLANG = """
import json, sys, time
from pathlib import Path
from hpcrl.engines.sglang.command import Place
from hpcrl.engines.sglang.server import SglangServer
from hpcrl.engines.sglang.settings import Sglang
told = json.loads(sys.argv[1])
place = Place(**{**told["place"], "model": Path(told["place"]["model"]), "gpus": ()})
settings = Sglang(python=told["python"], max_tokens=2048, start_s=280)
log = Path(told["log"])
server = SglangServer(settings, place, key=sys.argv[2], log=log, temporary=log.parent / "t")
print(server.start(), flush=True)
time.sleep(600)
"""


@dataclass
class Killable:
    url: str
    pid: int


@pytest.fixture
def embedded(tiny_model: Path) -> Iterator[Killable]:
    process = subprocess.Popen([sys.executable, "-c", _EMBEDDED, str(tiny_model), KEY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Killable(process.stdout.readline().strip(), process.pid)
    process.kill()
    process.wait()


@pytest.fixture
def sglang(tiny_model: Path, tmp_path: Path, sglang_server: Callable[..., SglangServer]) -> Iterator[SglangServer]:
    server = sglang_server(tiny_model, tmp_path / "log")
    server.start()
    yield server
    server.stop()


def dies_in_a_request(url: str, kill: Callable[[], None], wait_until) -> None:
    with EngineClient(url, key=KEY) as client:
        future = client.submit([[5, 9, 30]], Sampling(max_new_tokens=240, ignore_eos=True), seconds=8.0)
        wait_until(lambda: client.loads().running)
        kill()
        began = time.monotonic()
        with pytest.raises(EngineUnavailable):
            future.result(WAIT_S)
        assert time.monotonic() - began < 15
        assert not client.health()


def test_an_embedded_engine_that_is_killed_is_unavailable(embedded, wait_until):
    dies_in_a_request(embedded.url, lambda: os.kill(embedded.pid, signal.SIGKILL), wait_until)


def test_a_server_that_is_killed_is_unavailable_and_its_role_lost(sglang, tmp_path, wait_until):
    port = sglang.url.rpartition(":")[2]
    (main,) = [one for one in psutil.Process().children() if port in one.cmdline()]
    started = [main, *main.children(recursive=True)]
    assert len(started) >= 3
    for process in started:
        assert KEY not in " ".join(process.cmdline())
    assert KEY not in (tmp_path / "log").read_text()
    sglang.check()
    dies_in_a_request(sglang.url, main.kill, wait_until)
    with pytest.raises(RoleLost, match=r"was killed by signal 9; its last lines:\n[^;]+; read .*/log"):
        sglang.check()
    wait_until(lambda: not any(process.is_running() for process in started))


def test_a_server_ends_with_the_process_that_started_it(tiny_model, tmp_path, sglang_server, wait_until):
    place = sglang_server.place(tiny_model)
    told = {
        "place": {**vars(place), "model": str(tiny_model), "gpus": []},
        "python": sglang_server.python,
        "log": str(tmp_path / "log"),
    }
    role = subprocess.Popen([sys.executable, "-c", _SGLANG, json.dumps(told), KEY], stdout=subprocess.PIPE, text=True)
    assert role.stdout is not None
    assert role.stdout.readline().strip() == place.url
    started = psutil.Process(role.pid).children(recursive=True)
    assert len(started) >= 3
    role.kill()
    role.wait()
    wait_until(lambda: not any(process.is_running() for process in started), 20.0)


def test_a_server_that_cannot_start_says_what_its_log_says(tiny_model, tmp_path, sglang_server):
    server = sglang_server(tiny_model, tmp_path / "log", arguments=("--no-such-flag",))
    with pytest.raises(RoleFailed, match=r"ended with code 2; its last lines:\n(?s:.*)unrecognized arguments: --no-such-flag"):
        server.start()
