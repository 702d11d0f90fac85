from __future__ import annotations

import socket

import pytest

from hpcrl.run.addresses import family_of, host_part, is_free


@pytest.mark.parametrize(("address", "part"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("fd00::2", "[fd00::2]")])
def test_an_address_stands_in_a_url_as_urls_want_it(address: str, part: str):
    assert host_part(address) == part


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_is_free_unless_somebody_listens(address: str):
    with socket.create_server((address, 0), family=family_of(address)) as server:
        port = server.getsockname()[1]
        assert not is_free(address, port)
    assert is_free(address, port)
