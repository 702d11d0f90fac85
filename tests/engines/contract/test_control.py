"""Requests that are cut short, held or watched behave the same on either engine."""

from __future__ import annotations

import time

import pytest

from hpcrl.engines.completion import Sampling

pytestmark = pytest.mark.slow

WAIT_S = 120.0


def test_abort_gives_the_prefix_and_the_rest_can_be_asked_for(engine, weights, running):
    engine.client.abort("running")
    cut = running.result()
    assert cut.finish_reason == "abort"
    assert 0 < len(cut.tokens) < running.sampling.max_new_tokens
    assert len(cut.tokens) == len(cut.logprobs) == len(cut.versions)
    sampling = Sampling(max_new_tokens=len(cut.tokens) + 8, temperature=0.0, ignore_eos=True)
    (whole,) = engine.client.finish([running.prompt], [cut], sampling, seconds=WAIT_S)
    assert len(whole.tokens) == len(cut.tokens) + 8
    assert weights.reference.would_take(running.prompt, whole.tokens.tolist())
    assert whole.logprobs[: len(cut.tokens)].tolist() == cut.logprobs.tolist()
    assert whole.finish_reason == "length"
    assert engine.client.finish([running.prompt], [whole], sampling, seconds=WAIT_S) == [whole]
    (full,) = engine.client.finish([running.prompt], [cut], Sampling(max_new_tokens=len(cut.tokens)), seconds=WAIT_S)
    assert (full.finish_reason, len(full.tokens)) == ("length", len(cut.tokens))


def test_a_request_that_was_not_yet_begun_is_aborted_too(engine, running, wait_until):
    # More than either runs at a time, so that some wait.
    future = engine.client.submit([[7, 8, 9]] * 40, running.sampling, seconds=WAIT_S, rid="many")
    wait_until(lambda: engine.client.loads().waiting)
    engine.client.abort()
    made = [group[0] for group in future.result(WAIT_S)]
    assert {one.finish_reason for one in made} == {"abort"}
    assert any(len(one.tokens) == 0 for one in made)
    assert running.result().finish_reason == "abort"


def test_only_the_request_of_that_name_is_aborted(engine, running, wait_until):
    other = engine.client.submit([[7, 8, 9]], Sampling(max_new_tokens=40, ignore_eos=True), seconds=WAIT_S, rid="runningly")
    engine.client.abort("running")
    assert running.result().finish_reason == "abort"
    assert other.result(WAIT_S)[0][0].finish_reason == "length"


def test_a_client_that_goes_away_ends_its_request(engine, running, wait_until):
    assert not engine.client.flush_cache()
    running.future.cancel()
    wait_until(engine.client.flush_cache)


def test_pause_with_abort_answers_what_runs(engine, running):
    engine.client.pause("abort")
    cut = running.result()
    assert cut.finish_reason == "abort"
    assert len(cut.tokens) > 0
    later = engine.client.submit([running.prompt], Sampling(max_new_tokens=4), seconds=WAIT_S)
    time.sleep(0.3)
    assert not later.done()
    engine.client.continue_()
    assert later.result(WAIT_S)[0][0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_weights_that_change_in_a_pause_make_the_rest_of_the_tokens(engine, weights, running, mode):
    engine.client.pause(mode)
    assert running.stands_still()
    engine.client.update_weights_from_disk(weights.changed_folder, 1)
    assert running.stands_still()
    engine.client.continue_()
    running.await_tokens()
    engine.client.abort(running.rid)
    one = running.result()
    assert one.exact_versions
    first = int((one.versions == 0).sum())
    assert 0 < first < len(one.tokens)
    assert one.versions.tolist() == [0] * first + [1] * (len(one.tokens) - first)
    assert weights.reference.would_take(running.prompt, one.tokens[:first].tolist())
    if mode == "retract" and engine.recomputes:
        expected = weights.changed_reference.logprobs(running.prompt + one.tokens.tolist())[len(running.prompt) - 1 :]
        assert abs(one.logprobs[first:] - expected[first:]).max() < 0.02


def test_an_abort_in_a_pause_is_answered_when_it_ends(engine, running):
    engine.client.pause("in_place")
    assert running.stands_still()
    engine.client.abort("running")
    engine.client.continue_()
    assert running.result().finish_reason == "abort"


def test_what_an_engine_is_at_can_be_asked(engine, running, wait_until):
    client = engine.client
    # SGLang brings these up to date every 15 tokens.
    wait_until(lambda: client.loads().running == 1)
    assert 0 < client.loads().token_usage < 1
    text = client.ask("GET", "/metrics", None)
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput", "generation_tokens_total"):
        assert f"sglang:{name}" in text
    assert not client.flush_cache()
    client.pause("in_place")
    began = time.monotonic()
    assert client.health()
    assert time.monotonic() - began < 5
    client.continue_()
    client.abort()
    running.result()


def test_idle_caches_can_be_flushed(engine):
    assert engine.client.flush_cache()
