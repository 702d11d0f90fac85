from __future__ import annotations

import gc
import os
import socket
import threading

import pytest
import zmq

from hpcrl.run.sockets import bind, connect, own_context, shared_context


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
        held = context.socket(zmq.DEALER)
        held.connect("tcp://127.0.0.1:1")
        held.send(b"never taken")
        Holder(held)
    del held, context
    collector = threading.Thread(target=gc.collect, daemon=True)
    collector.start()
    collector.join(20)
    assert not collector.is_alive()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_sockets_meet_at_an_address_of_either_kind(address: str):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    server, client = shared_context().socket(zmq.ROUTER), shared_context().socket(zmq.DEALER)
    bind(server, address, port)
    connect(client, address, port)
    client.send(b"here")
    assert server.poll(10_000)
    assert server.recv_multipart()[1] == b"here"
    for one in (client, server):
        one.close(linger=0)
