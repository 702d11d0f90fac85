"""Bad requests are refused, harm nothing, and say what is wrong."""

from __future__ import annotations

import pytest

from hpcrl.engines.client import EngineClient, EngineError, EngineRefused
from hpcrl.engines.completion import Sampling

pytestmark = pytest.mark.slow

WAIT_S = 120.0


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [5] * 530},
        {"input_ids": [5] * 400, "sampling_params": {"max_new_tokens": 400}},
        {"input_ids": []},
        {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": -1}},
        {"input_ids": [5, 6], "sampling_params": {"temperature": -1.0}},
        {"input_ids": [5, 6], "sampling_params": {"top_p": 0.0}},
        {"input_ids": "five"},
        {"input_ids": [5, 6], "sampling_params": "none"},
        {"sampling_params": {"max_new_tokens": 3}},
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_bad_request_is_refused(engine, body):
    with pytest.raises(EngineRefused) as caught:
        engine.client.ask("POST", "/generate", body, seconds=WAIT_S)
    assert caught.value.status == 400
    assert str(caught.value).startswith(f"{engine.url}/generate: HTTP 400: ")
    (one,) = engine.client.generate([[5, 6]], Sampling(max_new_tokens=2, ignore_eos=True), seconds=WAIT_S)[0]
    assert len(one.tokens) == 2


def test_a_token_that_is_not_in_the_vocabulary_never_reaches_an_engine(engine):
    # SGLang dies of one; what is above the vocabulary a rollout finds when it checks its prompts.
    with pytest.raises(ValueError, match="-1 is no token"):
        engine.client.generate([[5, -1]], Sampling(max_new_tokens=2), seconds=WAIT_S)
    with pytest.raises(ValueError, match="-1 is no token"):
        engine.client.score([[5, -1]], seconds=WAIT_S)
    if engine.kind == "embedded":
        with pytest.raises(EngineRefused, match=r"input_ids must be in \[0, 49151\]"):
            engine.client.generate([[49152]], Sampling(max_new_tokens=2), seconds=WAIT_S)


def test_an_unknown_sampling_parameter_is_an_error(engine):
    # To SGLang it is one of its own, HTTP 500.
    body = {"input_ids": [5, 6], "sampling_params": {"max_tokens": 3}}
    with pytest.raises(EngineError):
        engine.client.ask("POST", "/generate", body, seconds=WAIT_S, repeat=False)


def test_a_route_that_is_not_there_is_not_found(engine):
    with pytest.raises(EngineRefused) as caught:
        engine.client.ask("POST", "/generated", {})
    assert caught.value.status == 404


@pytest.mark.parametrize("key", [None, "the-key-of-another-run"])
@pytest.mark.parametrize("route", ["/generate", "/model_info", "/server_info", "/v1/loads", "/update_weights_from_disk"])
def test_without_the_runs_key_nothing_is_served(engine, key, route):
    method = "GET" if "info" in route or "loads" in route else "POST"
    with EngineClient(engine.url, key=key) as stranger, pytest.raises(EngineRefused) as caught:
        stranger.ask(method, route, {} if method == "POST" else None)
    assert caught.value.status == 401


def test_a_pause_of_no_known_kind_is_refused(engine):
    with pytest.raises(EngineRefused) as caught:
        engine.client.ask("POST", "/pause_generation", {"mode": "gently"})
    assert caught.value.status == 400
