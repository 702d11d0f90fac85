from __future__ import annotations

import gc
import threading
import time

import pytest

from hpcrl.dataplane.desk.client import DeskClient
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger import ops
from hpcrl.run.stop import StopFlag


class Holder:
    """Keeps itself, so that only the collector ends it."""

    def __init__(self, client: DeskClient) -> None:
        self.client, self.me = client, self


def ask(client: DeskClient) -> None:
    client.ask(lambda seq, oldest: ops.AskDepth(who="x.0", life=1, seq=seq, oldest=oldest, stream="s"), what="look")


@pytest.fixture
def nobody() -> dict[str, object]:
    """Where no desk listens."""
    return {"ip": "127.0.0.1", "port": 1}


def test_a_forgotten_client_does_not_stop_the_collector(nobody: dict[str, object]):
    client = DeskClient("x.0", nobody, key="k" * 32, call_s=0.1)
    with pytest.raises(DataPlaneError, match="did not answer"):
        ask(client)
    client._put_back(client._take(), keep=True)
    Holder(client)
    del client
    collector = threading.Thread(target=gc.collect, daemon=True)
    collector.start()
    collector.join(20)
    assert not collector.is_alive()


def test_closing_ends_a_question_under_way(nobody: dict[str, object]):
    client = DeskClient("x.0", nobody, key="k" * 32, call_s=600)
    said: list[str] = []

    def wait() -> None:
        try:
            ask(client)
        except DataPlaneError as error:
            said.append(str(error))

    asking = threading.Thread(target=wait)
    asking.start()
    deadline = time.monotonic() + 20
    while not client._in_use and time.monotonic() < deadline:
        time.sleep(0.01)
    client.close()
    asking.join(20)
    assert said == [said[0]]
    assert "is closed" in said[0]
    assert not client._idle


def test_a_process_that_is_asked_to_stop_waits_less_for_a_desk_that_is_gone(
    nobody: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpcrl.dataplane.desk.client.STOPPED_S", 0.2)
    stop = StopFlag()
    stop.set()
    client = DeskClient("x.0", nobody, key="k" * 32, call_s=600, stop=stop)
    with pytest.raises(DataPlaneError, match=r"did not answer for 0\.2 s"):
        ask(client)
    client.close()
