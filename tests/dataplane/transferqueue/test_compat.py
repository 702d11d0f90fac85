from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.run.curve import curve_pair, guard_client
from hpcrl.run.sockets import shared_context

pytestmark = pytest.mark.slow  # imports torch and TransferQueue
KEY = "0123456789abcdef" * 3


@pytest.fixture
def compat():
    from hpcrl.dataplane.transferqueue import compat

    compat.use_key(KEY)
    yield compat
    compat.drop_key()


def test_every_private_touch_point_is_still_there(compat):
    assert {name: check() for name, check in compat.touch_points().items()} == dict.fromkeys(compat.touch_points(), True)


@pytest.mark.parametrize("found", ["0.1.10", "0.2.0", None])
def test_another_version_is_refused(compat, monkeypatch, found):
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(DataPlaneError, match=r"needs TransferQueue 0.1.11, found .* pip install"):
        compat._check_version()


def test_no_false_ray_and_no_variable_is_left_behind(compat):
    assert "ray" not in sys.modules
    assert importlib.util.find_spec("ray") is None
    assert not any(name.startswith("TQ_") for name in os.environ)


def test_a_busy_port_is_an_error_that_names_it(compat):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(DataPlaneError, match=f"{port}.* is busy"):
            compat.start_storage("127.0.0.1", port, compat.StorageUnitData(None), "queue.1")


def test_a_second_key_is_refused(compat):
    with pytest.raises(DataPlaneError, match="another run"):
        compat.use_key("something else")
    compat.use_key(KEY)
    compat.drop_key()
    with pytest.raises(DataPlaneError, match="another run"):
        compat.use_key("something else")
    compat.drop_key()
    compat.use_key("something else")
    compat.drop_key()
    compat.use_key(KEY)


class Peer:
    """Speaks to a unit as TransferQueue's own client would, and says what it likes."""

    def __init__(self, compat: Any, endpoint: dict[str, Any], pair: tuple[bytes, bytes] | None) -> None:
        self._zmq = compat.zmq_module
        self._socket = shared_context().socket(zmq.DEALER)
        self._socket.identity = self._zmq.STORAGE_CLIENT_IDENTITY_PREFIXES[0] + b"peer"
        if pair is not None:
            guard_client(self._socket, pair)
        self._socket.connect(f"tcp://{endpoint['ip']}:{endpoint['ports']['put_get_socket']}")

    def ask(self, kind: str, body: dict[str, Any], seconds: float = 20.0) -> tuple[str, str]:
        """Kind and message of the answer; empty if there is none."""
        request = self._zmq.ZMQRequestType
        return self.send(self._zmq.ZMQMessage.create(request_type=request[kind], sender_id="p", body=body).serialize(), seconds)

    def send(self, frames: list[Any], seconds: float = 20.0) -> tuple[str, str]:
        self._socket.send_multipart(frames)
        if not self._socket.poll(int(seconds * 1000)):
            return "", ""
        answer = self._zmq.ZMQMessage.deserialize(self._socket.recv_multipart())
        return answer.request_type.name, str(answer.body.get("message", ""))

    def close(self) -> None:
        self._socket.close(linger=0)


@pytest.fixture
def peer(units, compat):
    made = Peer(compat, units.storage[0], curve_pair(KEY))
    yield made
    made.close()


def body(**more: Any) -> dict[str, Any]:
    import torch

    return {"global_indexes": [2], "data": {"f": torch.zeros(1, 3, dtype=torch.uint8)}, **more}


class Touches:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_peer_with_the_key_stores_bytes(peer):
    assert peer.ask("PUT_DATA", body()) == ("PUT_DATA_RESPONSE", "")
    assert peer.ask("CLEAR_DATA", {"global_indexes": [2]})[0] == "CLEAR_DATA_RESPONSE"


def test_code_of_a_peer_with_the_key_is_not_executed(peer, tmp_path):
    made = tmp_path / "made"

    def parse(data: Any) -> Any:
        made.touch()
        return data

    kind, said = peer.ask("PUT_DATA", body(data_parser=parse))
    assert (kind, "nothing but plain values" in said) == ("PUT_GET_ERROR", True)
    kind, said = peer.ask("PUT_DATA", body(data_parser="parse"))
    assert (kind, "execute nothing" in said) == ("PUT_GET_ERROR", True)
    kind, said = peer.ask("PUT_DATA", body(data_parser=Touches(made)))
    assert (kind, "nothing but plain values" in said) == ("PUT_GET_ERROR", True)
    # What TransferQueue falls back to: one pickle for the whole message.
    assert peer.send([b"\xc1", pickle.dumps(Touches(made))])[0] == "PUT_GET_ERROR"
    assert not made.exists()
    # The unit goes on.
    assert peer.ask("PUT_DATA", body())[0] == "PUT_DATA_RESPONSE"
    assert peer.ask("CLEAR_DATA", {"global_indexes": [2]})[0] == "CLEAR_DATA_RESPONSE"


@pytest.mark.parametrize("kind", ["SAVE_STORAGE_CHECKPOINT", "LOAD_STORAGE_CHECKPOINT"])
def test_paths_of_a_peer_with_the_key_are_not_taken(peer, tmp_path, kind):
    path = tmp_path / "checkpoint"
    answer, said = peer.ask(kind, {"path": str(path)})
    assert (answer, "checkpoints" in said) == ("PUT_GET_ERROR", True)
    assert not path.exists()


@pytest.mark.parametrize("key", ["another run's", None])
def test_a_peer_without_the_key_gets_nothing(units, compat, key):
    stranger = Peer(compat, units.storage[0], None if key is None else curve_pair(key))
    assert stranger.ask("PUT_DATA", body(), seconds=1.5) == ("", "")
    stranger.close()
