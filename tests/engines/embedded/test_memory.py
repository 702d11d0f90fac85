"""The embedded engine lets go of its memory and takes it again, over the routes that SGLang has for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.engines.client import EngineClient, EngineRefused, EngineUnavailable
from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.run.stop import wait_for

KEY = "secret"
PROMPT = [5, 9, 30, 41, 7]
GREEDY = Sampling(max_new_tokens=6, temperature=0.0)
LONG = Sampling(max_new_tokens=120, temperature=1.0)


@pytest.fixture
def server(tiny_model: Path) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1, chunk_tokens=1, weight_version="0"), api_key=KEY)
    made.url = made.start()
    yield made
    made.stop()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[EngineClient]:
    with EngineClient(server.url, key=KEY, call_s=30) as made:
        yield made


def generate(client: EngineClient) -> list[int]:
    ((completion,),) = client.generate([PROMPT], GREEDY, seconds=30)
    return completion.tokens.tolist()


def held(client: EngineClient) -> dict[str, int]:
    (state,) = client.ask("GET", "/server_info", None)["internal_states"]
    return state["memory_bytes"]


def start_long(client: EngineClient) -> Future[Any]:
    future = client.submit([PROMPT], LONG, samples=4, seconds=60)
    wait_for("a cache", lambda: held(client)["kv_cache"] or None, seconds=30)
    return future


def test_weights_go_and_come_back_only_with_a_version(client, server, tiny_model):
    before, size = generate(client), sum(p.nbytes for p in server.engine.model.module.parameters())
    assert held(client) == {"weights": size, "kv_cache": 0}
    client.pause("abort")
    client.release()
    assert held(client) == {"weights": 0, "kv_cache": 0}
    assert {p.untyped_storage().nbytes() for p in server.engine.model.module.parameters()} == {0}
    assert client.health(), "it is well, and its requests wait"
    assert client.model_info().weight_hash is None
    for call in (client.continue_, lambda: client.update_weights_from_disk(tiny_model, 1)):
        with pytest.raises(EngineRefused, match="was released; resume it first"):
            call()
    client.resume()
    assert held(client)["weights"] == size
    with pytest.raises(EngineRefused, match="the weights were released, and none were loaded since"):
        client.continue_()
    digest = hash_tensors(load_file(tiny_model / "model.safetensors"))
    assert client.update_weights_from_disk(tiny_model, 1, expect_hash=digest).weight_hash == digest
    client.continue_()
    assert generate(client) == before


def test_a_version_is_loaded_whole_even_if_little_of_it_is_new(client, server, tiny_model, tmp_path):
    weights = load_file(tiny_model / "model.safetensors")
    client.pause("abort")
    client.release()
    client.resume()
    for parameter in server.engine.model.module.parameters():
        parameter.data.fill_(float("nan"))
    digest = hash_tensors(weights)
    assert client.update_weights_from_disk(tiny_model, 0, expect_hash=digest).weight_hash == digest
    client.continue_()
    assert len(generate(client)) > 0
    broken = tmp_path / "broken"
    broken.mkdir()
    save_file({name: tensor for name, tensor in weights.items() if "norm" not in name}, broken / "model.safetensors")
    client.pause("abort")
    client.release()
    client.resume()
    with pytest.raises(EngineRefused, match="do not fit"):
        client.update_weights_from_disk(broken, 2)
    with pytest.raises(EngineRefused, match="none were loaded since"):
        client.continue_()


def test_requests_under_way_must_have_ended(client, server):
    future = start_long(client)
    for hold in (lambda: None, lambda: client.pause("in_place"), lambda: client.pause("retract")):
        hold()
        with pytest.raises(EngineRefused, match="pause with mode abort"):
            client.ask("POST", "/release_memory_occupation", {})
    assert held(client)["weights"] > 0
    client.pause("abort")
    assert [one.finish_reason for one in future.result(30)[0]] == ["abort"] * 4
    assert held(client)["kv_cache"] == 0
    client.release()
    assert held(client)["weights"] == 0


def test_what_is_asked_while_it_is_paused_waits_for_the_weights(client, tiny_model):
    before = generate(client)
    client.pause("abort")
    future = client.submit([PROMPT], GREEDY, seconds=60)
    # It does not count as waiting, as with SGLang: nothing of it must be ended.
    client.release()
    client.resume()
    assert not future.done()
    client.update_weights_from_disk(tiny_model, 1)
    client.continue_()
    ((completion,),) = future.result(30)
    assert completion.tokens.tolist() == before
    assert completion.versions.tolist() == [1] * len(before)


def test_what_is_asked_while_it_is_paused_can_be_aborted(client):
    client.pause("abort")
    future = client.submit([PROMPT], GREEDY, seconds=60, rid="mine")

    def abort() -> bool | None:
        client.abort("mine")
        return future.done() or None

    wait_for("the abort", abort, seconds=30)
    assert [one.finish_reason for one in future.result(1)[0]] == ["abort"]


def test_generating_without_memory_and_without_a_pause_is_refused(client, server):
    server.engine.release_memory(["kv_cache"])
    with pytest.raises(EngineUnavailable, match="the memory of kv_cache was released"):
        client.generate([PROMPT], GREEDY, seconds=1)
    server.engine.resume_memory(["kv_cache"])
    assert len(generate(client)) > 0, "the weights were there all the time"


def test_once_more_is_no_error_and_an_unknown_tag_is(client, tiny_model):
    client.pause("abort")
    for call in (client.release, client.release, client.resume, client.resume):
        call()
    with pytest.raises(EngineRefused, match="tags must be of weights, kv_cache"):
        client.ask("POST", "/release_memory_occupation", {"tags": ["cache"]})
    client.ask("POST", "/release_memory_occupation", {"tags": ["cuda_graph"]})
    client.update_weights_from_disk(tiny_model, 0)
    client.continue_()
    assert torch.tensor(generate(client)).numel() > 0
