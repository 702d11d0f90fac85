from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import sys

import pytest

from hpcrl.dataplane.interface import DataPlaneError

pytestmark = pytest.mark.slow  # imports torch and TransferQueue


@pytest.fixture
def compat():
    from hpcrl.dataplane.transferqueue import compat

    return compat


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
    from hpcrl.dataplane.transferqueue.sampler import BlockSampler

    compat.use_key("0123456789abcdef" * 3)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(DataPlaneError, match=f"{port}.* is busy"):
            compat.start_storage("127.0.0.1", [port], 1)
        with pytest.raises(DataPlaneError, match="two planned ports"):
            compat.start_controller("127.0.0.1", [port], BlockSampler())


def test_a_second_key_is_refused(compat):
    compat.use_key("0123456789abcdef" * 3)
    with pytest.raises(DataPlaneError, match="another run"):
        compat.use_key("something else")
