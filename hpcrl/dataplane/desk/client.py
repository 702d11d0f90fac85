"""Asking the desk: each question over a connection of its own, again until it is answered or its deadline has passed."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from hpcrl.dataplane.desk.wire import gives_nothing, pack_request, unpack_reply
from hpcrl.dataplane.interface import DataPlaneError, NotAnswered
from hpcrl.dataplane.ledger.ops import Answer, AnyOp, Lease, decode_answer, encode
from hpcrl.run.curve import curve_pair, guard_client
from hpcrl.run.errors import Stopped, host
from hpcrl.run.sockets import connect, shared_context
from hpcrl.run.sockets import endpoint as address_of
from hpcrl.run.stop import STOPPED_S, StopFlag

# A desk that was killed is back within seconds; until then questions are sent again, so soon that nobody notices more.
FIRST_PATIENCE_S, LAST_PATIENCE_S = 0.5, 4.0
_STOP_EVERY_S = 0.25

MakeOp = Callable[[int, int], AnyOp]


@dataclass
class _Asked:
    op: AnyOp
    sent: int


class DeskClient:
    """One process's way to ask. Thread-safe; threads do not wait for each other.

    Args:
        name: the process, ``group.rank``.
        endpoint: ``{"ip": …, "port": …}``.
        key: the run's secret.
        call_s: the longest that the desk may be silent [s]; at most 15 s once the process is asked to stop.
        stop: ends waits for something to give.
    """

    def __init__(
        self, name: str, endpoint: Mapping[str, Any], *, key: str, call_s: float, stop: StopFlag | None = None
    ) -> None:
        self._name, self._call_s, self._stop = name, call_s, stop or StopFlag()
        self._ip, self._port = str(endpoint["ip"]), int(endpoint["port"])
        self._address = address_of(self._ip, self._port)
        self._pair = curve_pair(key)
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._idle: list[zmq.Socket[bytes]] = []
        self._in_use = 0
        self._last, self._open_seqs = 0, set[int]()
        # Leases whose answers never came, by what they ask for, and how often they were sent.
        self._unanswered: dict[bytes, tuple[AnyOp, int]] = {}
        self._closed = False

    def ask(self, make: MakeOp, *, what: str, wait_s: float = 0.0) -> Answer:
        """The answer to an operation.

        A lease that was never answered may have given rows to this process; it is sent again in place of the next one that
        asks for the same.

        Args:
            make: from ``(seq, oldest)`` to the operation.
            what: is asked for, for errors.
            wait_s: how long the desk may keep the question while it has nothing to give [s].

        Raises:
            NotAnswered: no answer within the deadline; the operation may have been carried out.
            DataPlaneError: the client was closed.
            Stopped: while the desk had nothing to give.
        """
        with self._lock:
            self._last += 1
            op, sent = make(self._last, min(self._open_seqs, default=self._last)), 0
            if self._unanswered:
                op, sent = self._unanswered.pop(_question(op), (op, 0))
            self._open_seqs.add(op.seq)
        asked, open_still = _Asked(op, sent), False
        try:
            return self._repeat(asked, what, wait_s)
        except NotAnswered:
            question = _question(op)
            with self._lock:
                if question and question not in self._unanswered:
                    self._unanswered[question], open_still = (op, asked.sent), True
            raise
        finally:
            if not open_still:
                with self._lock:
                    self._open_seqs.discard(op.seq)

    def close(self) -> None:
        """Let go of the sockets; questions under way end with an error. Safe to call twice."""
        with self._free:
            self._closed = True
            # A socket is not to be closed under the thread that uses it.
            self._free.wait_for(lambda: not self._in_use, timeout=4 * _STOP_EVERY_S)
            idle, self._idle = self._idle, []
        for socket in idle:
            socket.close(linger=0)

    def _repeat(self, asked: _Asked, what: str, wait_s: float) -> Answer:
        began = time.monotonic()
        until, patience = began + wait_s, FIRST_PATIENCE_S
        encoded = encode(asked.op)
        while True:
            # Waits are cut short so that a stop is heard.
            wait = max(0.0, min(until - time.monotonic(), _STOP_EVERY_S))
            answer = self._once(pack_request(wait, asked.sent, encoded), asked.op.seq, wait + patience)
            asked.sent += 1
            if answer is not None:
                if not gives_nothing(answer) or time.monotonic() >= until:
                    return answer
                if self._stop.is_set():
                    raise Stopped(f"asked to stop while waiting to {what}")
                began, patience = time.monotonic(), FIRST_PATIENCE_S
                continue
            patience = min(2 * patience, LAST_PATIENCE_S)
            most = min(self._call_s, STOPPED_S) if self._stop.is_set() else self._call_s
            if time.monotonic() - began > most:
                raise NotAnswered(
                    f"{self._name} on {host()}: the data plane's desk at {self._address} did not answer for {most:g} s "
                    f"when asked to {what}; read logs/queue.0.log of the attempt"
                )

    def _once(self, request: bytes, seq: int, seconds: float) -> Answer | None:
        socket = self._take()
        deadline, keep = time.monotonic() + seconds, False
        try:
            socket.send(request)
            while (left := deadline - time.monotonic()) > 0:
                if socket.poll(math.ceil(min(left, _STOP_EVERY_S) * 1000)):
                    answered, answer = unpack_reply(socket.recv())
                    # The answer to an earlier question of this socket may still have come.
                    if answered == seq:
                        keep = True
                        return decode_answer(answer)
                elif self._closed:
                    raise self._closed_error()
            return None
        except zmq.Again:
            return None
        except (zmq.ZMQError, struct.error, msgspec.MsgspecError) as error:
            raise NotAnswered(f"{self._name} on {host()}: cannot ask the desk at {self._address}: {error}") from error
        finally:
            self._put_back(socket, keep=keep)

    def _take(self) -> zmq.Socket[bytes]:
        with self._lock:
            if self._closed:
                raise self._closed_error()
            self._in_use += 1
            if self._idle:
                return self._idle.pop()
            socket: zmq.Socket[bytes] = shared_context().socket(zmq.DEALER)
        guard_client(socket, self._pair)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        # Only a desk that takes nothing for long, with a full socket before it, makes a send wait.
        socket.setsockopt(zmq.SNDTIMEO, int(LAST_PATIENCE_S * 1000))
        connect(socket, self._ip, self._port)
        return socket

    def _put_back(self, socket: zmq.Socket[bytes], *, keep: bool) -> None:
        with self._free:
            self._in_use -= 1
            # A close that did not wait for this one has not seen it.
            if keep and not self._closed:
                self._idle.append(socket)
            else:
                socket.close(linger=0)
            self._free.notify_all()

    def _closed_error(self) -> DataPlaneError:
        return DataPlaneError(f"{self._name} on {host()}: the connection to the data plane is closed")


def _question(op: AnyOp) -> bytes:
    """What a lease asks for, whatever its number; empty for any other operation."""
    return encode(msgspec.structs.replace(op, seq=0, oldest=0)) if isinstance(op, Lease) else b""
