"""Asking the desk: each question over a connection of its own, again until it is answered or its deadline has passed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq

from hpcrl.dataplane.desk.keys import curve_pair, guard_client
from hpcrl.dataplane.desk.wire import gives_nothing, pack_request, unpack_reply
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Answer, AnyOp, decode_answer, encode
from hpcrl.run.errors import Stopped, host
from hpcrl.run.stop import StopFlag

# A desk that was killed is back within seconds; until then questions are sent again, so soon that nobody notices more.
FIRST_PATIENCE_S, LAST_PATIENCE_S = 0.5, 4.0
_STOP_EVERY_S = 0.25

MakeOp = Callable[[int, int], AnyOp]


class DeskClient:
    """One process's way to ask. Thread-safe; threads do not wait for each other.

    Args:
        name: the process, ``group.rank``.
        endpoint: ``{"ip": …, "port": …}``.
        key: the run's secret.
        call_s: the longest that the desk may be silent [s].
        stop: ends waits for something to give.
    """

    def __init__(
        self, name: str, endpoint: Mapping[str, Any], *, key: str, call_s: float, stop: StopFlag | None = None
    ) -> None:
        self._name, self._call_s, self._stop = name, call_s, stop or StopFlag()
        self._address = f"tcp://{endpoint['ip']}:{endpoint['port']}"
        self._pair = curve_pair(key)
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._idle: list[zmq.Socket[bytes]] = []
        self._last, self._open_seqs = 0, set[int]()
        self._closed = False

    def ask(self, make: MakeOp, *, what: str, wait_s: float = 0.0) -> Answer:
        """The answer to an operation.

        Args:
            make: from ``(seq, oldest)`` to the operation.
            what: is asked for, for errors.
            wait_s: how long the desk may keep the question while it has nothing to give [s].

        Raises:
            DataPlaneError: no answer within the deadline; the operation may have been carried out.
        """
        with self._lock:
            self._last += 1
            seq = self._last
            self._open_seqs.add(seq)
            op = make(seq, min(self._open_seqs))
        try:
            return self.repeat(op, what=what, wait_s=wait_s)
        finally:
            with self._lock:
                self._open_seqs.discard(seq)

    def repeat(self, op: AnyOp, *, what: str, wait_s: float = 0.0) -> Answer:
        """The same for an operation that is made already."""
        began = time.monotonic()
        until, patience = began + wait_s, FIRST_PATIENCE_S
        encoded = encode(op)
        while True:
            now = time.monotonic()
            # Waits are cut short so that a stop is heard.
            wait = max(0.0, min(until - now, _STOP_EVERY_S))
            answer = self._once(pack_request(wait, encoded), op.seq, wait + patience)
            if answer is not None:
                if not gives_nothing(answer) or time.monotonic() >= until:
                    return answer
                if self._stop.is_set():
                    raise Stopped(f"asked to stop while waiting to {what}")
                began, patience = time.monotonic(), FIRST_PATIENCE_S
                continue
            patience = min(2 * patience, LAST_PATIENCE_S)
            if time.monotonic() - began > self._call_s:
                raise DataPlaneError(
                    f"{self._name} on {host()}: the data plane's desk at {self._address} did not answer for {self._call_s:g} s "
                    f"when asked to {what}; read logs/queue.0.log of the attempt"
                )

    def close(self) -> None:
        """Let go of the sockets; questions under way end with an error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
        for socket in idle:
            socket.close(linger=0)
        self._context.destroy(linger=0)

    def _once(self, request: bytes, seq: int, seconds: float) -> Answer | None:
        socket = self._take()
        deadline = time.monotonic() + seconds
        try:
            socket.send(request)
            while socket.poll(max(0, math.ceil((deadline - time.monotonic()) * 1000))):
                answered, answer = unpack_reply(socket.recv())
                # The answer to an earlier question of this socket may still have come.
                if answered == seq:
                    self._put_back(socket)
                    return decode_answer(answer)
        except (zmq.ZMQError, msgspec.MsgspecError) as error:
            socket.close(linger=0)
            raise DataPlaneError(f"{self._name} on {host()}: cannot ask the desk at {self._address}: {error}") from error
        socket.close(linger=0)
        return None

    def _take(self) -> zmq.Socket[bytes]:
        with self._lock:
            if self._closed:
                raise DataPlaneError(f"{self._name} on {host()}: the connection to the data plane is closed")
            if self._idle:
                return self._idle.pop()
            socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        guard_client(socket, self._pair)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        # Nothing is queued for a desk that is not there; the question is asked again anyway.
        socket.setsockopt(zmq.SNDTIMEO, int(LAST_PATIENCE_S * 1000))
        socket.connect(self._address)
        return socket

    def _put_back(self, socket: zmq.Socket[bytes]) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(socket)
                return
        socket.close(linger=0)
