from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hpcrl.engines.client import EngineClient, EngineRefused, EngineUnavailable
from hpcrl.engines.completion import Completion, Sampling, expand_versions, sample_seed, version_number
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.run.errors import CheckFailed

KEY = "secret"
PROMPTS = [[5, 9, 30, 41, 7], [60, 61, 8]]
LONG = Sampling(max_new_tokens=240, ignore_eos=True)
SHORT = Sampling(max_new_tokens=6, ignore_eos=True)


@pytest.fixture
def served(tiny_model: Path) -> Iterator[tuple[EmbeddedServer, str]]:
    server = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1), api_key=KEY)
    yield server, server.start()
    server.stop()


@pytest.fixture
def client(served) -> Iterator[EngineClient]:
    with EngineClient(served[1], key=KEY, initial_version=3) as client:
        yield client


@pytest.fixture
def changed(tiny_model: Path, tmp_path: Path) -> Path:
    """Another version of the same model."""
    folder = tmp_path / "changed"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor * 1.1 for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def call(url: str, body=None, *, key: str | None = KEY):
    """Status and body of a plain HTTP call, without the client."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
            text, status, kind = answer.read().decode(), answer.status, answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        text, status, kind = error.read().decode(), error.code, error.headers.get_content_type()
    return status, json.loads(text) if kind == "application/json" else text


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_completions_come_by_prompt_and_sample(client, tiny_model):
    from transformers import AutoModelForCausalLM

    groups = client.generate(PROMPTS, SHORT, samples=3, seeds=[1, 2], seconds=60)
    assert [len(group) for group in groups] == [3, 3]
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len({tuple(c.tokens) for c in group}) > 1
        for completion in group:
            assert completion.tokens.dtype == completion.versions.dtype == np.int32
            assert completion.logprobs.dtype == np.float32
            assert completion.versions.tolist() == [3] * 6
            assert completion.exact_versions
            assert completion.finish_reason == "length"
            with torch.no_grad():
                rows = model(torch.tensor([prompt + completion.tokens.tolist()])).logits[0].log_softmax(-1)
            expected = rows[len(prompt) - 1 : -1].gather(1, torch.tensor(completion.tokens.astype(np.int64))[:, None])[:, 0]
            assert np.allclose(completion.logprobs, expected.numpy(), atol=1e-4)
    assert sum(c.cached_tokens for group in groups for c in group) == 2 * (5 + 3)


def test_the_same_seeds_give_the_same_completions_whatever_runs_beside(client):
    first = client.generate(PROMPTS, SHORT, samples=2, seeds=[1, 2], seconds=60)
    others = [client.submit([[9, 9, i]], LONG, samples=2, seconds=60) for i in range(3)]
    again = client.generate(PROMPTS, SHORT, samples=2, seeds=[1, 2], seconds=60)
    for one, two in zip(chain(*first), chain(*again), strict=True):
        assert np.array_equal(one.tokens, two.tokens)
        assert np.array_equal(one.logprobs, two.logprobs)
    assert [len(c.tokens) for other in others for c in other.result(60)[0]] == [240] * 6


def test_versions_of_tokens_follow_an_update_in_place(client, served, changed):
    future = client.submit(PROMPTS[:1], LONG, seconds=60)
    wait_until(lambda: served[0].engine.figures.generation_tokens > 0)
    client.pause("in_place")
    assert not future.done()
    update = client.update_weights_from_disk(changed, 4)
    assert client.model_info().version == 4
    assert client.model_info().weight_hash == update.weight_hash
    client.continue_()
    (completion,) = future.result(60)[0]
    made = served[0].engine.settings.chunk_tokens
    first = int((completion.versions == 3).sum())
    assert 0 < first < 240
    assert first % made == 0
    assert completion.versions.tolist() == [3] * first + [4] * (240 - first)


def test_abort_gives_the_tokens_so_far(client, served):
    future = client.submit(PROMPTS, LONG, samples=2, seconds=60, rid="mine")
    other = client.submit(PROMPTS[:1], SHORT, seconds=60, rid="mine too")
    wait_until(lambda: served[0].engine.figures.generation_tokens > 8)
    client.abort("mine")
    completions = list(chain(*future.result(60)))
    assert {c.finish_reason for c in completions} == {"abort"}
    assert all(0 < len(c.tokens) < 240 for c in completions)
    assert other.result(60)[0][0].finish_reason == "length"
    client.abort()


def test_a_cancelled_call_is_aborted_at_the_server(client, served):
    future = client.submit(PROMPTS, LONG, seconds=60)
    wait_until(lambda: served[0].engine.figures.generation_tokens > 0)
    future.cancel()
    wait_until(lambda: served[0].engine.figures.aborted == 2)


def test_a_deadline_ends_the_wait_and_the_request(client, served):
    client.pause("in_place")
    with pytest.raises(EngineUnavailable, match=r"/generate: no answer within 0\.2 s"):
        client.generate(PROMPTS, SHORT, seconds=0.2)
    wait_until(lambda: served[0].engine.figures.aborted == 2)


@pytest.mark.parametrize(
    ("prompts", "sampling", "words"),
    [
        ([[5] * 300], SHORT, "longer than the model's context length"),
        ([[]], SHORT, "cannot be empty"),
        ([[5]], dataclasses.replace(SHORT, max_new_tokens=-1), "max_new_tokens must be at least 0"),
        ([[5]], dataclasses.replace(SHORT, top_p=0.0), "top_p"),
    ],
)
def test_wrong_requests_are_refused_with_the_url_and_the_reason(client, prompts, sampling, words):
    with pytest.raises(EngineRefused, match=words) as caught:
        client.generate(prompts, sampling, seconds=60)
    assert caught.value.status == 400
    assert f"{client.url}/generate" in str(caught.value)


def test_a_call_that_makes_no_sense_is_refused_before_it_is_sent(client):
    with pytest.raises(ValueError, match="2 prompts but 1 seeds"):
        client.generate(PROMPTS, SHORT, seeds=[1], seconds=60)
    with pytest.raises(ValueError, match="nothing to generate"):
        client.generate([], SHORT, seconds=60)


def test_an_update_that_fails_says_why(client, tmp_path):
    with pytest.raises(EngineRefused, match=r"holds no \*\.safetensors"):
        client.update_weights_from_disk(tmp_path, 5)
    assert client.model_info().version == 3
    assert client.health()


def test_an_unhealthy_engine_says_so_until_a_whole_version_is_loaded(client, changed):
    with pytest.raises(EngineRefused, match="expected 00"):
        client.update_weights_from_disk(changed, 5, expect_hash="00")
    assert not client.health()
    with pytest.raises(EngineUnavailable, match="HTTP 503"):
        client.generate(PROMPTS, SHORT, seconds=0.3)
    client.update_weights_from_disk(changed, 6)
    assert client.health()
    assert client.generate(PROMPTS, SHORT, seconds=60)[0][0].versions.tolist() == [6] * 6


def test_a_wrong_key_opens_nothing_but_health(served):
    with EngineClient(served[1], key="guess") as stranger:
        with pytest.raises(EngineRefused, match="401"):
            stranger.generate(PROMPTS, SHORT, seconds=60)
        with pytest.raises(EngineRefused, match="401"):
            stranger.pause()
        assert stranger.health()
    for route in ("/model_info", "/metrics", "/health_generate", "/v1/loads", "/server_info"):
        assert call(served[1] + route, key=None)[0] == 401
        assert call(served[1] + route)[0] == 200


def test_the_answer_has_sglangs_fields(served):
    body = {
        "input_ids": PROMPTS[0],
        "sampling_params": {"max_new_tokens": 3, "n": 2, "ignore_eos": True},
        "return_logprob": True,
    }
    status, answers = call(served[1] + "/generate", body | {"logprob_start_len": 0, "rid": "x"})
    assert status == 200
    assert [a["meta_info"]["id"] for a in answers] == ["x_0", "x_1"]
    meta = answers[0]["meta_info"]
    assert [pair[1] for pair in meta["output_token_logprobs"]] == answers[0]["output_ids"]
    assert [pair[1] for pair in meta["input_token_logprobs"]] == PROMPTS[0]
    assert meta["input_token_logprobs"][0] == [None, 5, None]
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 3}]
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (5, 3, "default")


def test_text_goes_in_and_out(served):
    body = {"text": ["1+1=", "Hello"], "sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}}
    status, answers = call(served[1] + "/generate", body)
    assert status == 200
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [4, 5]
    assert all(isinstance(a["text"], str) for a in answers)
    alone = call(served[1] + "/generate", {"text": "1+1=", "sampling_params": body["sampling_params"]})[1]
    assert alone["output_ids"] == answers[0]["output_ids"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [5], "stream": True}, "'stream' is not supported"),
        ({"input_ids": [5], "sampling_params": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"input_ids": [5], "text": "a"}, "Either text, input_ids"),
        ({"input_ids": []}, "cannot be empty"),
        ({"input_ids": ["a"]}, "must be a list of integers"),
        ({"input_ids": [[5], [6]], "sampling_params": [{}]}, "a list of 2 objects"),
        ({"input_ids": [[5], [6]], "rid": ["a", "a"]}, "Duplicate request IDs"),
        ({"input_ids": [5], "logprob_start_len": 9, "return_logprob": True}, "higher than the number of input tokens"),
        ([], "must be a JSON object"),
    ],
)
def test_wrong_bodies_are_refused_in_sglangs_words(served, body, words):
    status, answer = call(served[1] + "/generate", body)
    assert status == 400
    assert words in answer["error"]["message"]


def test_the_steering_routes_answer_like_sglang(served, changed):
    url = served[1]
    assert call(url + "/pause_generation", {"mode": "sideways"})[0] == 400
    assert call(url + "/pause_generation", {}) == (200, {"message": "Generation paused successfully.", "status": "ok"})
    assert call(url + "/continue_generation", {}) == (200, {"message": "Generation continued successfully.", "status": "ok"})
    status, answer = call(url + "/update_weights_from_disk", {"model_path": str(changed), "weight_version": "v9"})
    assert (status, answer["success"], answer["num_paused_requests"]) == (200, True, 0)
    info = call(url + "/model_info")[1]
    assert (info["weight_version"], info["model_path"], info["weight_hash"]) == ("v9", str(changed), answer["hash"])
    assert call(url + "/flush_cache", {})[0] == 200
    assert call(url + "/abort_request", {"rid": "nobody"})[0] == 200
    assert call(url + "/health_generate")[0] == 200
    assert call(url + "/v1/loads")[1]["loads"][0]["num_running_reqs"] == 0


def test_metrics_count_under_sglangs_names(served, client):
    client.generate(PROMPTS, SHORT, samples=2, seconds=60)
    status, text = call(served[1] + "/metrics")
    figures = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}
    assert status == 200
    assert figures["sglang:generation_tokens_total"] == 24
    assert figures["sglang:num_requests_total"] == 4
    assert figures["sglang:cached_tokens_total"] == 8
    assert figures["sglang:num_running_reqs"] == 0
    assert figures["sglang:queue_time_seconds_count"] == 1


def test_stop_leaves_no_thread_and_no_port(tiny_model):
    before = set(threading.enumerate())
    server = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1))
    url = server.start()
    port = int(url.rsplit(":", 1)[1])
    client = EngineClient(url)
    future = client.submit(PROMPTS, LONG, seconds=60)
    wait_until(lambda: server.engine.figures.requests == 2)
    server.stop()
    server.stop()
    client.close()
    client.close()
    assert future.done()
    assert set(threading.enumerate()) <= before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_taken_port_is_told_before_the_model_is_loaded(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = EngineSettings(model_path=tmp_path)
        with pytest.raises(CheckFailed, match="cannot listen"):
            EmbeddedServer(settings, port=taken.getsockname()[1]).start()
    with pytest.raises(CheckFailed, match=r"no config\.json"):
        EmbeddedServer(settings).start()


def test_nobody_at_the_url_is_an_error_within_the_deadline():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with EngineClient(f"http://127.0.0.1:{port}", call_s=0.3) as client:
        assert not client.health()
        with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}/model_info"):
            client.model_info()


class FlakyFake(BaseHTTPRequestHandler):
    """A fake server: breaks the connection of the first call to each route, and knows no version spans."""

    seen: list[str]

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()

    def answer(self):
        self.seen.append(self.path)
        if self.seen.count(self.path) == 1:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        meta = {
            "weight_version": "7",
            "finish_reason": {"type": "stop", "matched": 1},
            "output_token_logprobs": [[-0.5, 9, None]] * 3,
        }
        body = json.dumps(
            {"success": True, "weight_version": "7", "model_path": "m"} if self.path != "/generate" else [{"meta_info": meta}]
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def flaky() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (FlakyFake,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_broken_call_is_repeated_only_where_that_does_no_harm(flaky):
    url, seen = flaky
    with EngineClient(url, call_s=10) as client:
        assert client.model_info().version == 7
        (completion,) = client.generate([[1]], SHORT, seconds=10)[0]
        with pytest.raises(EngineUnavailable, match="/update_weights_from_disk"):
            client.update_weights_from_disk(Path("m"), 8)
    assert seen == ["/model_info"] * 2 + ["/generate"] * 2 + ["/update_weights_from_disk"]
    assert completion.versions.tolist() == [7, 7, 7]
    assert not completion.exact_versions


def test_versions_are_read_from_spans_and_from_a_single_name():
    spans = [{"version": "v1", "start": 0, "end": 2}, {"version": "v000002", "start": 2, "end": 3}]
    assert expand_versions({"weight_version": "v000002", "weight_versions": spans}, 3, 0).tolist() == [1, 1, 2]
    assert expand_versions({"weight_version": "default"}, 2, 5).tolist() == [5, 5]
    with pytest.raises(ValueError, match="ends in no number"):
        version_number("latest", 0)


def test_seeds_of_samples_differ_and_fit_31_bits():
    seeds = {sample_seed(seed, sample) for seed in range(50) for sample in range(20)}
    assert len(seeds) == 1000
    assert max(seeds) < 2**31


def test_a_completion_without_logprobs_is_no_completion():
    with pytest.raises(KeyError):
        Completion.from_json({"output_ids": [1], "meta_info": {"finish_reason": {"type": "stop"}}}, initial_version=0)
