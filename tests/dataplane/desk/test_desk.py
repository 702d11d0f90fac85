"""The desk's sockets between threads, with a keeper that stands in for the ledger."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pytest
import zmq

from hpcrl.dataplane.desk.client import DeskClient
from hpcrl.dataplane.desk.server import Desk
from hpcrl.dataplane.desk.wire import pack_request
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger import ops
from hpcrl.run.curve import curve_pair, guard_client
from hpcrl.run.errors import Stopped
from hpcrl.run.sockets import shared_context
from hpcrl.run.stop import StopFlag, wait_for

KEY = "secret" * 4


class FakeKeeper:
    """One stream of numbers: Put adds one, Lease takes the oldest."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.seen: list[ops.AnyOp] = []
        self._news: set[str] = set()

    def apply(self, op: ops.AnyOp, encoded: bytes) -> ops.Answer:
        assert ops.decode_op(encoded) == op
        self.seen.append(op)
        if isinstance(op, ops.Put):
            self.rows.append(op.first)
            self._news.add(op.stream)
            return ops.Granted()
        if isinstance(op, ops.Lease):
            blocks = [ops.Given(self.rows.pop(0), 1, [])] if self.rows else []
            return ops.Leased(blocks)
        return ops.Granted()

    def may_give(self, op: ops.AnyOp) -> bool:
        return True

    def news(self) -> Iterable[str]:
        news, self._news = self._news, set()
        return news

    def tick(self) -> float:
        return 10.0


class Served:
    """A desk in a thread."""

    def __init__(self, port: int, keeper: FakeKeeper) -> None:
        self.keeper, self._stop = keeper, StopFlag()
        self._desk = Desk("127.0.0.1", port, curve_pair(KEY), keeper)
        self._thread = threading.Thread(target=self._desk.serve, args=(self._stop,))
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._desk.close()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def served(port: int) -> Iterator[Served]:
    made = Served(port, FakeKeeper())
    yield made
    made.end()


def client(port: int, key: str = KEY, call_s: float = 10.0, stop: StopFlag | None = None) -> DeskClient:
    return DeskClient("x.0", {"ip": "127.0.0.1", "port": port}, key=key, call_s=call_s, stop=stop)


def put(one: DeskClient, first: int) -> ops.Answer:
    return one.ask(
        lambda seq, oldest: ops.Put(
            who="x.0", life=1, seq=seq, oldest=oldest, stream="s", first=first, rows=1, refs={}, bytes=1
        ),
        what="put",
    )


def lease(one: DeskClient, wait_s: float) -> list[int]:
    answer = one.ask(
        lambda seq, oldest: ops.Lease(
            who="x.0", life=1, seq=seq, oldest=oldest, stream="s", columns=[], max_rows=1, seconds=1.0
        ),
        what="read",
        wait_s=wait_s,
    )
    assert isinstance(answer, ops.Leased)
    return [given.first for given in answer.blocks]


def test_answers_come_and_operations_are_numbered(served: Served, port: int):
    one = client(port)
    assert put(one, 3) == ops.Granted()
    assert lease(one, 0) == [3]
    assert [op.seq for op in served.keeper.seen] == [1, 2]
    assert [op.oldest for op in served.keeper.seen] == [1, 2]
    one.close()


def test_a_question_waits_at_the_desk_until_there_is_something(served: Served, port: int):
    one, took = client(port), []
    began = threading.Event()

    def read() -> None:
        began.set()
        took.append((lease(one, 20.0), time.monotonic()))

    thread = threading.Thread(target=read)
    thread.start()
    began.wait()
    wait_for("the question at the desk", lambda: served.keeper.seen or None, seconds=5)
    put(one, 8)
    at = time.monotonic()
    thread.join(10)
    assert took[0][0] == [8]
    assert took[0][1] - at < 5
    one.close()


def test_an_empty_answer_comes_when_the_wait_is_over(served: Served, port: int):
    one = client(port)
    began = time.monotonic()
    assert lease(one, 0.4) == []
    assert 0.35 <= time.monotonic() - began < 5
    one.close()


def test_a_stop_ends_the_wait(served: Served, port: int):
    stop = StopFlag()
    one = client(port, stop=stop)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(Stopped, match="read"):
        lease(one, 60.0)
    one.close()


def test_a_desk_that_comes_back_is_asked_again_with_the_same_number(port: int):
    first, one = Served(port, FakeKeeper()), client(port, call_s=20)
    put(one, 1)
    first.end()
    again: list[Served] = []
    threading.Timer(1.0, lambda: again.append(Served(port, FakeKeeper()))).start()
    assert put(one, 2) == ops.Granted()
    assert {op.seq for op in again[0].keeper.seen} == {2}
    again[0].end()
    one.close()


def test_a_desk_that_stays_away_is_an_error_that_says_where_to_read(port: int):
    one = client(port, call_s=1.0)
    with pytest.raises(DataPlaneError, match=r"x\.0 .*put; read logs/queue\.0\.log"):
        put(one, 1)
    one.close()


def test_a_peer_with_another_key_gets_nothing_and_is_logged(served: Served, port: int, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        stranger = client(port, key="another", call_s=1.0)
        with pytest.raises(DataPlaneError):
            put(stranger, 1)
        wait_for("the log", lambda: "without this run's key" in caplog.text or None, seconds=5)
    stranger.close()
    assert served.keeper.seen == []


def test_a_peer_without_any_key_gets_nothing_and_is_logged(served: Served, port: int, caplog: pytest.LogCaptureFixture):
    with ExitStack() as peers, caplog.at_level(logging.WARNING):

        def knock() -> bool | None:
            # One that hangs up before the handshake was heard is nobody, and it does not come again by itself.
            plain = peers.enter_context(shared_context().socket(zmq.DEALER))
            plain.linger = 0
            plain.connect(f"tcp://127.0.0.1:{port}")
            plain.send(b"x" * 100)
            assert not plain.poll(300)
            return "without this run's key" in caplog.text or None

        wait_for("the log", knock, seconds=20)
    assert served.keeper.seen == []


def test_a_copy_that_comes_late_is_not_carried_out(served: Served, port: int):
    """The process has had an answer to a later copy, that there is nothing, and has gone on."""
    peer = shared_context().socket(zmq.DEALER)
    guard_client(peer, curve_pair(KEY))
    peer.connect(f"tcp://127.0.0.1:{port}")
    op = ops.encode(ops.Lease(who="x.0", life=1, seq=1, oldest=1, stream="s", columns=[], max_rows=1, seconds=1.0))
    peer.send(pack_request(0.0, 1, op))
    assert peer.poll(5000)
    one = client(port)
    put(one, 8)
    peer.send(pack_request(0.0, 0, op))
    assert lease(one, 5.0) == [8]
    peer.close(linger=0)
    one.close()


def test_garbage_from_a_peer_changes_nothing(served: Served, port: int, caplog: pytest.LogCaptureFixture):
    peer = shared_context().socket(zmq.DEALER)
    guard_client(peer, curve_pair(KEY))
    peer.connect(f"tcp://127.0.0.1:{port}")
    for garbage in (b"", b"x", b"x" * 8, b"\x93abc" * 100):
        peer.send(garbage)
    peer.send_multipart([b"a", b"b", b"c"])
    one = client(port)
    assert put(one, 1) == ops.Granted()
    wait_for("the log", lambda: "are no operation" in caplog.text or None, seconds=5)
    assert len(served.keeper.seen) == 1
    peer.close(linger=0)
    one.close()


def test_a_busy_port_is_an_error(served: Served, port: int):
    with pytest.raises(DataPlaneError, match=f"port {port}"):
        Desk("127.0.0.1", port, curve_pair(KEY), FakeKeeper())
