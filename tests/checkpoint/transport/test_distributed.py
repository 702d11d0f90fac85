from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.checkpoint.hashing import tensor_bytes
from hpcrl.checkpoint.publish.codec import bits_of
from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.transport.distributed import DistributedSender, Members, Said, Wire, agree, group_name
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.group import Group
from hpcrl.checkpoint.transport.interface import Held, Outbox

WAIT_S = 30.0
SPECS = [TensorSpec("a", "bfloat16", (3, 5)), TensorSpec("b", "float32", (7,)), TensorSpec("c", "bfloat16", ())]


def version(number: int) -> Version:
    return Version(version=number, hash="h", dtype="bfloat16", attempt=1, previous=None, previous_hash="", files=[], tensors={})


def tensors(start: float) -> dict[str, torch.Tensor]:
    made = {s.name: torch.arange(torch.Size(s.shape).numel()).reshape(s.shape) + start for s in SPECS}
    return {spec.name: made[spec.name].to(getattr(torch, spec.dtype)) for spec in SPECS}


def held(values: dict[str, torch.Tensor]) -> Held:
    return {spec.name: (spec, bits_of(tensor_bytes(values[spec.name]), spec.itemsize)) for spec in SPECS}


def test_new_groups_only_where_somebody_came_went_or_failed() -> None:
    one = agree(Members(), [Said(("e.1", "e.0")), Said()])
    assert one == Members(1, ("e.0", "e.1"))
    assert agree(one, [Said(("e.0", "e.1")), Said()]) == one
    failed = agree(one, [Said(("e.0", "e.1")), Said(failed=True)])
    assert failed == Members(2, ("e.0", "e.1"))
    assert agree(failed, [Said(("e.0",)), Said()]) == Members(3, ("e.0",))
    assert agree(failed, [Said(()), Said()]) == Members(3, ())
    assert (failed.rank("e.1"), failed.rank("e.2")) == (2, None)


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.booleans()), max_size=8))
def test_all_ranks_agree_and_no_group_is_used_after_a_failure(story: list[tuple[set[str], bool]]) -> None:
    here, there = Members(), Members()
    for engines, failed in story:
        said = [Said(tuple(engines)), Said(failed=failed)]
        before = here
        here, there = agree(here, said), agree(there, said)
        assert here == there
        assert set(here.engines) == engines
        assert here.generation == before.generation or here.generation == before.generation + 1
        assert not failed or here.generation > before.generation


@pytest.mark.parametrize("engines", [1, 3])
def test_every_member_gets_the_bytes_and_groups_last(free_port: Callable[[], int], engines: int) -> None:
    wire = Wire.of(SPECS, "127.0.0.1", free_port(), "gloo")
    assert Wire.from_json(wire.to_json()) == wire
    sender = DistributedSender(wire, rank=0, seconds=WAIT_S)
    got: list[list[dict[str, torch.Tensor]]] = [[] for _ in range(engines)]

    def receive(rank: int) -> None:
        group = Group(
            wire.address,
            wire.port,
            rank=rank,
            size=engines + 1,
            name=group_name(0, 1),
            backend="gloo",
            seconds=WAIT_S,
        )
        for _ in range(2):
            here = {}
            for name, dtype, shape in zip(wire.names, wire.dtypes, wire.shapes, strict=True):
                here[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                group.broadcast(here[name])
            got[rank - 1].append(here)
        group.close()

    threads = [threading.Thread(target=receive, args=(rank,)) for rank in range(1, engines + 1)]
    for thread in threads:
        thread.start()
    sender.members = Members(1, tuple(f"e.{i}" for i in range(engines)))
    sent = [tensors(0), tensors(100)]
    for number, values in enumerate(sent):
        sender.send(version(number), held(values))
    for thread in threads:
        thread.join(WAIT_S)
    sender.close()
    for of_one in got:
        for values, received in zip(sent, of_one, strict=True):
            assert all(torch.equal(values[name], received[name]) for name in values)


def test_without_members_nothing_is_sent() -> None:
    sender = DistributedSender(Wire.of(SPECS, "127.0.0.1", 1, "gloo"), rank=0, seconds=WAIT_S)
    sender.send(version(1), held(tensors(0)))


def test_a_taken_port_is_named(free_port: Callable[[], int]) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TransportError, match=rf"at 127\.0\.0\.1:{port} within 1 s: .*Address already in use"):
            Group("127.0.0.1", port, rank=0, size=2, name="g", backend="gloo", seconds=1)


class FakeSender:
    """Keeps what it was given; fails where it is told to."""

    def __init__(self, *failing: int) -> None:
        self.sent: list[int] = []
        self.failing, self.closed = failing, False

    def send(self, version: Version, held: Held) -> None:
        if version.version in self.failing:
            raise TransportError("the peer is gone")
        self.sent.append(version.version)

    def close(self) -> None:
        self.closed = True


def test_an_outbox_sends_to_all_and_tells_what_failed_once() -> None:
    good, bad = FakeSender(), FakeSender(2)
    outbox = Outbox([bad, good])
    for number in (1, 2, 3):
        outbox.post(version(number), {})
        failed = outbox.settle()
        assert len(failed) == (1 if number == 2 else 0)
        if failed:
            assert "version 2 was not sent by FakeSender: the peer is gone" in failed[0]
    assert (good.sent, bad.sent) == ([1, 2, 3], [1, 3])
    outbox.post(version(2), {})
    outbox.close()
    assert good.closed
    assert bad.closed
