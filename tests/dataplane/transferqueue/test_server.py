from __future__ import annotations

import socket
import threading

import psutil
import pytest

from hpcrl.dataplane.memory import MemoryHub

pytestmark = pytest.mark.slow  # imports torch and TransferQueue


def test_servers_start_and_stop_within_one_process_leaving_no_port_and_no_thread():
    from hpcrl.dataplane.transferqueue import server
    from hpcrl.run.stop import StopFlag

    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        for taken in (one, two, three):
            taken.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1] for taken in (one, two, three)]
    before = set(threading.enumerate())
    stop, up = StopFlag(), threading.Barrier(3)
    endpoints = []

    def publish(endpoint: dict) -> None:
        endpoints.append(endpoint)
        up.wait(60)

    common = {"address": "127.0.0.1", "key": "0123456789abcdef" * 3, "publish": publish, "stop": stop}
    threads = [
        threading.Thread(target=server.serve_controller, kwargs={"ports": ports[:2], **common}),
        threading.Thread(target=server.serve_storage, kwargs={"ports": ports[2:], "capacity_blocks": 5, **common}),
    ]
    for thread in threads:
        thread.start()
    up.wait(60)

    def listening() -> set[tuple[str, int]]:
        held = psutil.Process().net_connections(kind="tcp")
        return {(c.laddr.ip, c.laddr.port) for c in held if c.status == psutil.CONN_LISTEN}

    assert listening() == {("127.0.0.1", port) for port in ports}
    assert sorted(port for endpoint in endpoints for port in endpoint["ports"].values()) == sorted(ports)
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert listening() == set()
    assert [t for t in threading.enumerate() if t not in before and t.is_alive()] == []


def test_every_unit_can_hold_all_blocks_that_may_live(make_bench):
    from hpcrl.dataplane.transferqueue.server import capacity_blocks

    assert capacity_blocks(make_bench(MemoryHub()).recipe, processes=8) == 1008
