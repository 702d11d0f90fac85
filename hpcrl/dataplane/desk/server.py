"""The desk's socket: takes operations to the keeper, and keeps those back that may yet be given something."""

from __future__ import annotations

import logging
import math
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from hpcrl.dataplane.desk.wire import gives_nothing, pack_reply, unpack_request
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Answer, AnyOp, decode_op, encode, topic
from hpcrl.run.curve import Pair, guard_server
from hpcrl.run.errors import host
from hpcrl.run.sockets import bind, own_context
from hpcrl.run.stop import StopFlag

log = logging.getLogger(__name__)

_LOOK_S = 0.25
# Requests handled between two looks at parked ones and the clock.
_BURST = 64
# Operations sent more than once, which are rare; a copy that is late is late by seconds.
_REMEMBERED = 4096
# A peer of this run that gives up in the middle of a handshake, as while the desk is stopped, fails without detail.
_STRANGERS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_STRANGER_LOG_S = 10.0


class Keeper(Protocol):
    """Carries operations out, durably."""

    def apply(self, op: AnyOp, encoded: bytes) -> Answer:
        """The answer; whatever it changed is durable."""

    def may_give(self, op: AnyOp) -> bool:
        """Whether it is worth a try to carry out an operation again that was given nothing."""

    def news(self) -> Iterable[str]:
        """Topics of which something may be had that was not to be had before, since the last call."""

    def tick(self) -> float:
        """Do what the clock asks for; seconds until that is due again."""


@dataclass
class _Parked:
    peer: bytes
    op: AnyOp
    encoded: bytes
    until: float


class Desk:
    """Listens on one port of an address.

    Args:
        pair: CURVE keys of the run.

    Raises:
        DataPlaneError: the port is busy.
    """

    def __init__(self, address: str, port: int, pair: Pair, keeper: Keeper) -> None:
        self._keeper = keeper
        self._context = own_context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        guard_server(self._socket, pair)
        # A peer that came back under another connection replaces itself by sending its question again.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._monitor = self._socket.get_monitor_socket(_STRANGERS)
        try:
            bind(self._socket, address, port)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise DataPlaneError(
                f"queue.0 on {host()}: port {port} of {address}, planned for the data plane's desk, cannot be bound: {error}; "
                "another program of this node uses it"
            ) from error
        self._parked: dict[str, dict[tuple[str, int, int], _Parked]] = {}
        self._sent_again: dict[tuple[str, int, int], int] = {}
        self._strangers, self._stranger_logged = 0, float("-inf")

    def serve(self, stop: StopFlag) -> None:
        """Answer until the stop."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        due = self._keeper.tick()
        while not stop.is_set():
            events = dict(poller.poll(math.ceil(min(_LOOK_S, due, self._next_deadline()) * 1000)))
            if self._monitor in events:
                self._note_stranger()
            if self._socket in events:
                self._take_requests()
            due = self._keeper.tick()
            self._serve_parked()

    def close(self) -> None:
        """Free the port."""
        self._socket.disable_monitor()
        self._context.destroy(linger=200)

    def _take_requests(self) -> None:
        for _ in range(_BURST):
            try:
                peer, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            try:
                wait_s, sent, encoded = unpack_request(data)
                op = decode_op(encoded)
            except (struct.error, msgspec.MsgspecError) as error:
                log.warning("a peer sent %d bytes that are no operation: %s", len(data), error)
                continue
            if self._is_newest(op, sent):
                self._answer(peer, op, encoded, time.monotonic() + min(wait_s, 60.0))
                self._serve_news()

    def _is_newest(self, op: AnyOp, sent: int) -> bool:
        """Whether it does not come after one that was sent later: its process has had the answer to that and gone on."""
        key = (op.who, op.life, op.seq)
        newest = self._sent_again.get(key, 0)
        if sent > newest:
            self._sent_again[key] = sent
            while len(self._sent_again) > _REMEMBERED:
                del self._sent_again[next(iter(self._sent_again))]
        return sent >= newest

    def _answer(self, peer: bytes, op: AnyOp, encoded: bytes, until: float) -> None:
        answer = self._keeper.apply(op, encoded)
        parked = self._parked.setdefault(topic(op), {})
        if gives_nothing(answer) and time.monotonic() < until:
            parked[op.who, op.life, op.seq] = _Parked(peer, op, encoded, until)
            return
        parked.pop((op.who, op.life, op.seq), None)
        self._send(peer, op, answer)

    def _serve_news(self) -> None:
        for subject in self._keeper.news():
            for key, item in list(self._parked.get(subject, {}).items()):
                if not self._keeper.may_give(item.op):
                    continue
                answer = self._keeper.apply(item.op, item.encoded)
                if not gives_nothing(answer):
                    del self._parked[subject][key]
                    self._send(item.peer, item.op, answer)

    def _serve_parked(self) -> None:
        self._serve_news()
        now = time.monotonic()
        for parked in self._parked.values():
            for key, item in list(parked.items()):
                if item.until <= now:
                    del parked[key]
                    self._send(item.peer, item.op, self._keeper.apply(item.op, item.encoded))

    def _next_deadline(self) -> float:
        ends = [item.until for parked in self._parked.values() for item in parked.values()]
        return max(0.0, min(ends) - time.monotonic()) if ends else _LOOK_S

    def _send(self, peer: bytes, op: AnyOp, answer: Answer) -> None:
        self._socket.send_multipart([peer, pack_reply(op.seq, encode(answer))])

    def _note_stranger(self) -> None:
        event = recv_monitor_message(self._monitor)
        self._strangers += 1
        now = time.monotonic()
        # Someone who knocks all day must not fill the disk.
        if now - self._stranger_logged >= _STRANGER_LOG_S:
            self._stranger_logged = now
            log.warning(
                "a peer without this run's key was turned away at %s (%d so far)", event["endpoint"].decode(), self._strangers
            )
