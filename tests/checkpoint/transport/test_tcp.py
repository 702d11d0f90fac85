from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.publish.versions import MARKER, Version, read_chain, versions
from hpcrl.checkpoint.transport import fetch as fetching
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.fetch import Fetcher
from hpcrl.checkpoint.transport.mirror import Mirror
from hpcrl.checkpoint.transport.serve import CHUNK, FileServer
from hpcrl.run.digest import digest_bytes
from hpcrl.run.disk import FileRecord
from hpcrl.run.errors import Stopped
from hpcrl.run.failpoints import armed
from hpcrl.run.stop import StopFlag

KEY = "the run's secret"
WAIT_S = 30.0
torch.set_num_threads(1)


class Policy:
    """The tiny model, published as a base and patches."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.tensors = {name: tensor.bfloat16() for name, tensor in load_file(model / "model.safetensors").items()}
        specs = [TensorSpec(name, "bfloat16", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.publisher = Publisher(folder, model, specs, attempt=1)

    def publish(self, number: int, *, whole: bool = False) -> Version:
        for tensor in self.tensors.values():
            tensor.view(torch.int16).reshape(-1)[::50] += 1
        return self.publisher.publish(number, self.tensors.items(), whole=whole)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def policy(weights: Path, tiny_model: Path) -> Policy:
    return Policy(weights, tiny_model)


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def server(weights: Path, port: int) -> Iterator[FileServer]:
    server = FileServer(weights, address="127.0.0.1", port=port, key=KEY)
    yield server
    server.close()


@pytest.fixture
def fetcher(port: int) -> Iterator[Fetcher]:
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=WAIT_S)
    yield fetcher
    fetcher.close()


def write(folder: Path, name: str, data: bytes) -> FileRecord:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return FileRecord(path.name, len(data), digest_bytes(data))


def test_a_node_far_away_gets_each_version_as_it_was_published(
    tmp_path: Path, policy: Policy, server: FileServer, fetcher: Fetcher, weights: Path
) -> None:
    mirror = Mirror(tmp_path / "mirror", fetcher, wait_s=WAIT_S)
    node = NodeWeights(tmp_path / "node", tmp_path / "mirror", wait_s=WAIT_S)
    base = policy.publish(1)
    for number in (2, 3):
        policy.publish(number)
    fourth = policy.publish(4)
    mirror.bring(4, fourth.hash)
    with node.bring(4, fourth.hash) as brought:
        assert brought.hash == fourth.hash
    assert versions(tmp_path / "mirror") == [1, 2, 3, 4]
    before = fetcher.received
    fifth = policy.publish(5)
    mirror.bring(5, fifth.hash)
    # Only the patch came, and the record.
    assert fetcher.received - before < base.size / 2
    with node.bring(5, fifth.hash) as brought:
        assert brought.hash == fifth.hash
    sixth = policy.publish(6, whole=True)
    mirror.bring(6, sixth.hash)
    assert versions(tmp_path / "mirror") == [6]
    assert not list((tmp_path / "mirror").glob("fetching"))
    mirror.bring(6, sixth.hash)


def test_a_peer_without_the_key_gets_nothing(weights: Path, server: FileServer, port: int) -> None:
    write(weights, "v000001/model.safetensors", b"secret")
    stranger = Fetcher("127.0.0.1", port, key="another", seconds=1.0)
    with pytest.raises(TransportError, match=r"no answer from tcp://127\.0\.0\.1:\d+ for 1 s while fetching v000001/model"):
        stranger.read("v000001/model.safetensors")
    assert stranger.received == 0
    stranger.close()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET /v000001/model.safetensors HTTP/1.1\r\n\r\n")
        plain.settimeout(1.0)
        heard = b""
        try:
            while piece := plain.recv(4096):
                heard += piece
        except (TimeoutError, ConnectionError):
            pass
    assert b"secret" not in heard


def test_it_listens_only_where_it_is_planned(server: FileServer, port: int) -> None:
    listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening if address.port == port] == ["127.0.0.1"]


@pytest.mark.parametrize(
    "name",
    ["key", "../key", "v000001/../../key", "v000001/.hidden", "/etc/passwd", "v000001/link", "v000001", "v000001/folder", ""],
)
def test_only_files_of_versions_are_given(weights: Path, server: FileServer, fetcher: Fetcher, name: str) -> None:
    write(weights.parent, "key", b"secret")
    write(weights, "v000001/.hidden", b"secret")
    (weights / "v000001/folder").mkdir()
    os.symlink(weights.parent / "key", weights / "v000001/link")
    with pytest.raises(TransportError, match="cannot be had"):
        fetcher.read(name)


def test_a_taken_port_is_named(server: FileServer, weights: Path, port: int) -> None:
    with pytest.raises(TransportError, match=f"port {port} of 127.0.0.1"):
        FileServer(weights, address="127.0.0.1", port=port, key=KEY)


@pytest.mark.parametrize("size", [0, 1, CHUNK, 3 * CHUNK + 17, 40 * CHUNK])
def test_files_of_any_size(tmp_path: Path, weights: Path, server: FileServer, fetcher: Fetcher, size: int) -> None:
    data = os.urandom(size)
    record = write(weights, "v000001/file", data)
    fetcher.fetch("v000001/file", record, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data
    assert fetcher.received == size


@pytest.mark.slow
def test_it_goes_on_where_a_dead_server_left_off(tmp_path: Path, weights: Path, port: int) -> None:
    data = os.urandom(30 * CHUNK)
    record = write(weights, "v000001/file", data)
    script = (
        "import sys, time; from pathlib import Path; from hpcrl.checkpoint.transport.serve import FileServer\n"
        "FileServer(Path(sys.argv[1]), address='127.0.0.1', port=int(sys.argv[2]), key=sys.argv[3]); time.sleep(60)"
    )

    def serve(failpoint: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HPCRL_FAILPOINT": failpoint}
        return subprocess.Popen([sys.executable, "-c", script, str(weights), str(port), KEY], env=environment)

    dying = serve("transport.chunk@21=kill")
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=2.0)
    with pytest.raises(TransportError, match="no answer"):
        fetcher.fetch("v000001/file", record, tmp_path / "file")
    dying.wait(WAIT_S)
    fetcher.close()
    assert not (tmp_path / "file").exists()
    held = (tmp_path / "file.part").stat().st_size
    assert held >= CHUNK
    alive = serve("")
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=WAIT_S)
    fetcher.fetch("v000001/file", record, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data
    assert fetcher.received == len(data) - held
    fetcher.close()
    alive.kill()
    alive.wait(WAIT_S)


@pytest.mark.slow
def test_a_server_that_comes_back_in_time_is_asked_again(
    tmp_path: Path, weights: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_AGAIN_S", 0.3)
    data = os.urandom(4 * CHUNK)
    record = write(weights, "v000001/file", data)
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=WAIT_S)
    servers: list[FileServer] = []

    def come_late() -> None:
        time.sleep(1.0)
        servers.append(FileServer(weights, address="127.0.0.1", port=port, key=KEY))

    late = threading.Thread(target=come_late)
    late.start()
    fetcher.fetch("v000001/file", record, tmp_path / "file")
    late.join()
    servers[0].close()
    fetcher.close()
    assert (tmp_path / "file").read_bytes() == data


def test_what_is_kept_of_another_file_is_not_built_on(
    tmp_path: Path, weights: Path, server: FileServer, fetcher: Fetcher
) -> None:
    data = os.urandom(2 * CHUNK)
    record = write(weights, "v000001/file", data)
    for left in (b"x" * CHUNK, b"x" * (3 * CHUNK)):
        (tmp_path / "file.part").write_bytes(left)
        fetcher.fetch("v000001/file", record, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("change", [lambda data: b"y" + data[1:], lambda data: data[:-1], lambda data: data + b"z"])
def test_a_file_that_is_not_what_was_written_is_refused(
    tmp_path: Path, weights: Path, server: FileServer, fetcher: Fetcher, change: Callable[[bytes], bytes]
) -> None:
    record = write(weights, "v000001/file", b"x" * (CHUNK + 5))
    path = weights / "v000001/file"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TransportError, match="v000001/file"):
        fetcher.fetch("v000001/file", record, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_version_that_is_gone_or_another_is_said(
    tmp_path: Path, policy: Policy, server: FileServer, fetcher: Fetcher, weights: Path
) -> None:
    mirror = Mirror(tmp_path / "mirror", fetcher, wait_s=WAIT_S)
    with pytest.raises(TransportError, match=rf"v000009/{MARKER} cannot be had"):
        mirror.bring(9, "x")
    first = policy.publish(1)
    with pytest.raises(TransportError, match=f"has hash {first.hash}, and x was announced"):
        mirror.bring(1, "x")
    mirror.bring(1, first.hash)
    assert [one.version for one in read_chain(tmp_path / "mirror", 1)] == [1]
    # The same number again, of other weights.
    again = policy.publish(1)
    mirror.bring(1, again.hash)
    assert read_chain(tmp_path / "mirror", 1)[-1].hash == again.hash


def test_an_interrupted_version_goes_on_file_by_file(
    tmp_path: Path, policy: Policy, server: FileServer, fetcher: Fetcher
) -> None:
    first = policy.publish(1)
    mirror = Mirror(tmp_path / "mirror", fetcher, wait_s=WAIT_S)
    largest = max(first.files, key=lambda record: record.size)
    with (
        armed("transport.chunk~tokenizer.json=errno:EIO"),
        pytest.raises(TransportError, match=r"tokenizer\.json cannot be had"),
    ):
        mirror.bring(1, first.hash)
    assert versions(tmp_path / "mirror") == []
    before = fetcher.received
    mirror.bring(1, first.hash)
    assert fetcher.received - before < largest.size
    assert versions(tmp_path / "mirror") == [1]


def test_a_stop_is_heard(port: int) -> None:
    stop = StopFlag()
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=WAIT_S, stop=stop)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped, match="v000001/file"):
        fetcher.read("v000001/file")
    fetcher.close()
