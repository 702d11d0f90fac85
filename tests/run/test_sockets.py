from __future__ import annotations

import gc
import os
import threading

import zmq

from hpcrl.run.sockets import own_context, shared_context


class Holder:
    """Keeps itself, so that only the collector ends it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket, self.me = socket, self


def test_a_process_has_one_context_and_a_child_its_own():
    assert shared_context() is shared_context()
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        mine = shared_context()
        fine = not mine.closed and mine.socket(zmq.DEALER) is not None
        os.write(writes, b"fine" if fine else b"bad")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 4) == b"fine"
    os.close(reads)
    os.close(writes)


def test_a_forgotten_socket_that_is_connected_does_not_stop_the_collector():
    for context in (shared_context(), own_context()):
        socket = context.socket(zmq.DEALER)
        socket.connect("tcp://127.0.0.1:1")
        socket.send(b"never taken")
        Holder(socket)
    del socket, context
    collector = threading.Thread(target=gc.collect, daemon=True)
    collector.start()
    collector.join(20)
    assert not collector.is_alive()
