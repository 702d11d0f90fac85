"""Updates by peers, through the routes of a running server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.transport.group import Group
from hpcrl.engines.client import EngineClient, EngineError, EngineRefused
from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.group_update import Channel, GroupUpdate

KEY = "secret"
WAIT_S = 60.0
PROMPT = [5, 9, 30, 41, 7]
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def served(tiny_model: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1, weight_version="0"), api_key=KEY)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(served: EmbeddedServer) -> Iterator[EngineClient]:
    with EngineClient(f"http://127.0.0.1:{served._port}", key=KEY) as client:
        yield client


@pytest.fixture
def changed(tiny_model: Path) -> Tensors:
    return {name: (tensor * 1.25).bfloat16() for name, tensor in load_file(tiny_model / "model.safetensors").items()}


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sender:
    """Rank 0 of a group, in threads of this process."""

    def __init__(self, name: str, tensors: Tensors) -> None:
        self.tensors = tensors
        self.channel = Channel(
            name,
            "127.0.0.1",
            a_port(),
            tuple(tensors),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()),
            tuple(tuple(tensor.shape) for tensor in tensors.values()),
        )
        self._group: Group | None = None

    def meet(self, size: int = 2) -> None:
        port, name = self.channel.port, self.channel.group
        self._group = Group("127.0.0.1", port, rank=0, size=size, name=name, backend="gloo", seconds=WAIT_S)

    def send(self, count: int | None = None) -> None:
        assert self._group is not None
        for tensor in list(self.tensors.values())[:count]:
            self._group.broadcast(tensor)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


@pytest.fixture
def senders(changed: Tensors) -> Iterator[Callable[..., list[Sender]]]:
    made: list[Sender] = []

    def make(count: int = 1, tensors: Tensors | None = None) -> list[Sender]:
        tensors = changed if tensors is None else tensors
        for index in range(count):
            made.append(Sender(f"weights-{index}-1", dict(list(tensors.items())[index::count])))
        return made

    yield make
    for sender in made:
        sender.close()


def joined(client: EngineClient, senders: list[Sender], seconds: float = WAIT_S) -> GroupUpdate:
    update = GroupUpdate(client, [one.channel for one in senders], rank=1, size=2, backend="gloo", seconds=seconds)
    with ThreadPoolExecutor(len(senders)) as pool:
        meeting = [pool.submit(sender.meet) for sender in senders]
        update.join()
        for future in meeting:
            future.result()
    return update


def sending(senders: list[Sender], count: int | None = None) -> list[threading.Thread]:
    threads = [threading.Thread(target=sender.send, args=(count,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    return threads


def refused(client: EngineClient, route: str, body: dict[str, object]) -> str:
    with pytest.raises(EngineRefused) as caught:
        client.ask("POST", route, body)
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize("count", [1, 3])
def test_weights_of_several_senders_are_loaded_and_hashed_as_sent(client, senders, changed, count):
    sent, expect = senders(count), hash_tensors(changed)
    update = joined(client, sent)
    for version in (1, 2):
        threads = sending(sent)
        got = update.update(version, expect_hash=expect, seconds=WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)
        assert got.weight_hash == expect
        info = client.model_info()
        assert (info.version, info.weight_hash) == (version, expect)
    update.leave()
    assert "does not exist" in refused(client, "/destroy_weights_update_group", {"group_name": sent[0].channel.group})


def test_samples_frozen_in_place_go_on_with_the_new_weights(client, served, senders):
    sent = senders()
    update = joined(client, sent)
    running = client.submit([PROMPT], Sampling(max_new_tokens=240, ignore_eos=True), seconds=WAIT_S)
    while not served.engine.figures.running:
        pass
    client.pause("in_place")
    sending(sent)
    update.update(7, expect_hash=None, seconds=WAIT_S)
    client.continue_()
    (completion,) = running.result(WAIT_S)[0]
    assert completion.versions[-1] == 7
    assert completion.versions[0] == 0


def test_nothing_is_decoded_between_begin_and_end(client, served, senders):
    client.ask("POST", "/begin_weight_update", {})
    request = client.submit([PROMPT], Sampling(max_new_tokens=2, ignore_eos=True), seconds=WAIT_S)
    while not served.engine._schedule.waiting:
        pass
    client.ask("POST", "/pause_generation", {"mode": "in_place"})
    client.ask("POST", "/continue_generation", {})
    assert not request.done()
    assert served.engine._schedule.running == 0
    client.ask("POST", "/end_weight_update", {})
    assert len(request.result(WAIT_S)[0][0].tokens) == 2
    assert client.model_info().version == 0


def test_the_order_of_the_calls_is_asked_for(client):
    body = {"names": [], "dtypes": [], "shapes": [], "group_name": "g"}
    assert "only between begin_weight_update and end" in refused(client, "/update_weights_from_distributed", body)
    assert "only between begin_weight_update and end" in refused(client, "/end_weight_update", {})
    client.ask("POST", "/begin_weight_update", {})
    assert "begun already" in refused(client, "/begin_weight_update", {})
    assert "in no weight group 'g'" in refused(client, "/update_weights_from_distributed", body)
    assert client.health()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ["model.norm.weight", "x"], "dtypes": ["float32"] * 2, "shapes": [[64], [1]]}, "x is not in the model"),
        ({"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[65]]}, r"model.norm.weight is (65,)"),
        ({"names": ["model.norm.weight"], "dtypes": ["float64"], "shapes": [[64]]}, "torch.float64, the model has"),
        ({"names": ["model.norm.weight"], "dtypes": ["int32"], "shapes": [[64]]}, "int32, the model has"),
        ({"names": ["model.norm.weight"], "dtypes": ["nothing"], "shapes": [[64]]}, "no dtype: 'nothing'"),
        ({"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [["a"]]}, "no shape: ['a']"),
        ({"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": []}, "1 names, 1 dtypes and 0 shapes"),
        ({"names": "model.norm.weight", "dtypes": [], "shapes": []}, "names must be a list"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_tensor(client, senders, change, words):
    sent = senders()
    joined(client, sent)
    before = client.model_info().weight_hash
    client.ask("POST", "/begin_weight_update", {})
    body = {**change, "group_name": sent[0].channel.group}
    assert words in refused(client, "/update_weights_from_distributed", body)
    client.ask("POST", "/end_weight_update", {})
    assert client.model_info().weight_hash == before
    assert client.health()


def test_a_part_of_the_weights_leaves_the_engine_unhealthy_until_a_whole_load(client, senders, changed, tiny_model):
    some = dict(list(changed.items())[:4])
    sent = senders(tensors=some)
    update = joined(client, sent)
    sending(sent)
    with pytest.raises(EngineRefused, match=r"tensors missing, such as model\..*load a whole version"):
        update.update(1, expect_hash=None, seconds=WAIT_S)
    assert not client.health()
    client.update_weights_from_disk(tiny_model, 2)
    assert client.health()
    assert client.model_info().version == 2


def test_other_weights_than_announced_leave_the_engine_unhealthy(client, senders):
    sent = senders()
    update = joined(client, sent)
    sending(sent)
    with pytest.raises(EngineRefused, match="expected 0123"):
        update.update(1, expect_hash="0123", seconds=WAIT_S)
    assert not client.health()
    # Weights that come whole from peers are as good as a folder.
    sending(sent)
    update.update(2, expect_hash=None, seconds=WAIT_S)
    assert client.health()


def test_a_sender_that_goes_away_leaves_the_engine_unhealthy_until_a_whole_load(client, senders, tiny_model, changed):
    sent = senders(2)
    # So long the engine waits for what does not come.
    update = joined(client, sent, seconds=8.0)
    first, second = sent

    def go_away() -> None:
        second.send(2)
        second.close()

    sending([first])
    threading.Thread(target=go_away, daemon=True).start()
    with pytest.raises(EngineRefused, match="a member is gone"):
        update.update(1, expect_hash=hash_tensors(changed), seconds=WAIT_S)
    assert not client.health()
    client.update_weights_from_disk(tiny_model, 2, expect_hash=hash_tensors(load_file(tiny_model / "model.safetensors")))
    assert client.health()


def test_a_load_from_a_folder_ends_an_update_that_nobody_ended(client, tiny_model):
    client.ask("POST", "/begin_weight_update", {})
    client.update_weights_from_disk(tiny_model, 3)
    assert "only between begin_weight_update and end" in refused(client, "/end_weight_update", {})
    assert len(client.generate([PROMPT], Sampling(max_new_tokens=2, ignore_eos=True), seconds=WAIT_S)[0][0].tokens) == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"backend": "nccl"}, "on a CPU, where backend must be gloo"),
        ({"backend": "mpi"}, "backend must be one of gloo, nccl"),
        ({"backend": "gloo", "master_address": ""}, "master_address must be a string"),
        ({"backend": "gloo", "master_port": "7"}, "master_port must be a whole number"),
        ({"backend": "gloo", "timeout_s": 0}, "timeout_s must be a number above 0"),
        ({"backend": "gloo", "timeout_s": 1}, "the members did not meet at 127.0.0.1"),
    ],
)
def test_a_group_that_cannot_be_entered_says_why(client, body, words):
    whole = {"master_address": "127.0.0.1", "master_port": a_port(), "rank_offset": 1, "world_size": 2, "timeout_s": 1}
    assert words in refused(client, "/init_weights_update_group", {**whole, **body})


@pytest.mark.parametrize(
    "route",
    [
        "/init_weights_update_group",
        "/destroy_weights_update_group",
        "/begin_weight_update",
        "/end_weight_update",
        "/update_weights_from_distributed",
    ],
)
def test_every_route_asks_for_the_key(served, route):
    with EngineClient(f"http://127.0.0.1:{served._port}", key="another") as stranger:
        with pytest.raises(EngineRefused) as caught:
            stranger.ask("POST", route, {})
        assert caught.value.status == 401


def test_an_engine_that_stops_does_not_wait_for_a_sender(served, client, senders):
    sent = senders()
    update = joined(client, sent)
    failed = threading.Event()

    def receive() -> None:
        try:
            # An engine that stops before the call of a tensor reached it is called again for so long.
            update.update(1, expect_hash=None, seconds=5.0)
        except EngineError:
            failed.set()

    thread = threading.Thread(target=receive)
    thread.start()
    while not served.engine._holding.is_receiving:
        pass
    sent[0].send(1)
    served.stop()
    assert failed.wait(WAIT_S)
    thread.join()
