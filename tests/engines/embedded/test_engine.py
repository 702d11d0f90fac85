from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.engines.embedded.engine import EmbeddedEngine
from hpcrl.engines.embedded.errors import RequestError, WeightUpdateError
from hpcrl.engines.embedded.settings import EngineSettings

PROMPT = [5, 9, 30, 41, 7]
LONG = {"max_new_tokens": 240, "ignore_eos": True, "sampling_seed": 3}
WAIT_S = 60


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(EngineSettings(model_path=tiny_model, threads=1, weight_version="0"))
    yield engine
    engine.stop()


@pytest.fixture
def changed(tiny_model: Path, tmp_path: Path) -> Path:
    """Another version of the same model."""
    folder = tmp_path / "changed"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    save_file(
        {k: v + 0.02 * torch.randn(v.shape, generator=generator) for k, v in weights.items()}, folder / "model.safetensors"
    )
    return folder


def run(engine: EmbeddedEngine, sampling=None, prompts=None, **options):
    prompts = prompts or [PROMPT]
    return engine.submit(prompts, [sampling or LONG] * len(prompts), return_logprob=True, **options).result(WAIT_S)


def hold_after(engine: EmbeddedEngine, chunks: int) -> tuple[threading.Event, threading.Event]:
    """Stop the engine's thread once it has run so many chunks; returns (reached, go on)."""
    reached, go_on = threading.Event(), threading.Event()
    schedule, step, seen = engine._schedule, engine._schedule.step, []

    def counted(version: str, *, admit: bool) -> None:
        step(version, admit=admit)
        seen.append(1)
        if len(seen) == chunks:
            reached.set()
            assert go_on.wait(WAIT_S)

    schedule.step = counted
    return reached, go_on


def call_between_chunks(engine: EmbeddedEngine, gate, call):
    """Run ``call`` in a thread, let the engine go on once the call is in its line; returns the call's answer."""
    reached, go_on = gate
    assert reached.wait(WAIT_S)
    answer = []
    caller = threading.Thread(target=lambda: answer.append(call()))
    caller.start()
    while not engine._calls and caller.is_alive():
        caller.join(0.001)
    go_on.set()
    caller.join(WAIT_S)
    return answer[0] if answer else None


def test_an_update_in_place_changes_the_version_at_the_right_token(engine, changed):
    gate = hold_after(engine, 3)
    future = engine.submit([PROMPT], [LONG], return_logprob=True)
    call_between_chunks(engine, gate, lambda: engine.pause("in_place"))
    assert not future.done()
    report = engine.update_weights(changed, "1")
    assert (report.version, report.held) == ("1", 1)
    engine.continue_()
    (sequence,) = future.result(WAIT_S)
    assert [(s.version, s.start, s.end) for s in sequence.spans] == [("0", 0, 12), ("1", 12, 240)]
    assert sequence.retractions == 0


def test_a_retracted_sample_keeps_its_tokens_and_is_computed_again_with_the_new_weights(engine, changed):
    gate = hold_after(engine, 2)
    future = engine.submit([PROMPT], [LONG], return_logprob=True)
    call_between_chunks(engine, gate, lambda: engine.pause("retract"))
    assert engine.figures.waiting == 1
    engine.update_weights(changed, "1", flush_cache=True)
    engine.continue_()
    (sequence,) = future.result(WAIT_S)
    assert [(s.version, s.start, s.end) for s in sequence.spans] == [("0", 0, 8), ("1", 8, 240)]
    assert sequence.retractions == 1
    with torch.no_grad():
        rows = engine.model.module(torch.tensor([PROMPT + sequence.tokens])).logits[0].log_softmax(-1)[len(PROMPT) - 1 : -1]
    now = rows.gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(sequence.logprobs[8:]), now[8:], atol=1e-4)
    assert not torch.allclose(torch.tensor(sequence.logprobs[:8]), now[:8], atol=1e-3)


def test_a_pause_that_changes_nothing_leaves_the_tokens_as_they_were(engine):
    (undisturbed,) = run(engine)
    for mode in ("in_place", "retract"):
        gate = hold_after(engine, 2)
        future = engine.submit([PROMPT], [LONG], return_logprob=True)
        call_between_chunks(engine, gate, lambda mode=mode: engine.pause(mode))
        engine.continue_()
        (sequence,) = future.result(WAIT_S)
        assert sequence.tokens == undisturbed.tokens


def test_a_pause_by_abort_answers_with_what_there_is_and_holds_what_comes(engine):
    gate = hold_after(engine, 2)
    future = engine.submit([PROMPT], [LONG])
    call_between_chunks(engine, gate, lambda: engine.pause("abort"))
    (sequence,) = future.result(WAIT_S)
    assert sequence.finish_reason is not None
    assert sequence.finish_reason["type"] == "abort"
    assert len(sequence.tokens) == 8
    later = engine.submit([PROMPT], [{"max_new_tokens": 2, "ignore_eos": True}])
    assert engine.flush_cache(), "what comes during a pause waits outside, as with SGLang"
    assert engine.figures.waiting == 0
    assert not later.done()
    engine.continue_()
    assert len(later.result(WAIT_S)[0].tokens) == 2


def test_abort_ends_the_named_request_alone(engine):
    gate = hold_after(engine, 2)
    one = engine.submit([PROMPT], [LONG], rids=["one"])
    two = engine.submit([PROMPT], [{**LONG, "max_new_tokens": 20}], rids=["two"])
    assert call_between_chunks(engine, gate, lambda: engine.abort("one")) == 1
    assert one.result(WAIT_S)[0].finish_reason["type"] == "abort"
    assert two.result(WAIT_S)[0].finish_reason == {"type": "length", "length": 20}
    assert engine.abort("") == 0
    assert engine.figures.aborted == 1


def test_new_requests_do_not_wait_for_long_ones(engine):
    gate = hold_after(engine, 1)
    long = engine.submit([PROMPT], [LONG])
    short: list = []
    call_between_chunks(
        engine, gate, lambda: short.append(engine.submit([PROMPT], [{"max_new_tokens": 4, "ignore_eos": True}]))
    )
    assert len(short[0].result(WAIT_S)[0].tokens) == 4
    assert not long.done()
    engine.abort(abort_all=True)


@pytest.mark.parametrize("repeatable", [True, False])
def test_only_a_repeatable_engine_computes_seeded_requests_apart(repeatable, tiny_model):
    engine = EmbeddedEngine(EngineSettings(model_path=tiny_model, threads=1, repeatable=repeatable))
    try:
        requests = [{"max_new_tokens": 8, "ignore_eos": True, "sampling_seed": seed} for seed in range(3)]
        apart = [run(engine, request)[0].tokens for request in requests]
        engine.pause("in_place")
        waiting = [engine.submit([PROMPT], [request]) for request in requests]
        reached, go_on = hold_after(engine, 1)
        engine.continue_()
        assert reached.wait(WAIT_S)
        together = [len(cohort.rows) for cohort in engine._schedule._cohorts]
        go_on.set()
        # Seeds hold either way.
        assert [future.result(WAIT_S)[0].tokens for future in waiting] == apart
        assert together == ([1] if repeatable else [3])
    finally:
        engine.stop()


def test_a_seeded_request_gives_the_same_tokens_beside_others(engine):
    params = {"max_new_tokens": 30, "ignore_eos": True, "sampling_seed": 11}
    alone = run(engine, params, [PROMPT, [60, 61]])
    others = [engine.submit([[7, 8, 9]], [{"max_new_tokens": 50, "ignore_eos": True}]) for _ in range(3)]
    beside = run(engine, params, [PROMPT, [60, 61]])
    assert [s.tokens for s in alone] == [s.tokens for s in beside]
    assert [s.logprobs for s in alone] == [s.logprobs for s in beside]
    for other in others:
        other.result(WAIT_S)


def test_more_samples_than_fit_are_served_in_turns(tiny_model):
    engine = EmbeddedEngine(EngineSettings(model_path=tiny_model, threads=1, max_running_rows=4))
    try:
        seeded = run(engine, {"max_new_tokens": 3, "n": 10, "ignore_eos": True, "sampling_seed": 1})
        free = run(engine, {"max_new_tokens": 3, "n": 10, "ignore_eos": True})
        assert [len(s.tokens) for s in seeded + free] == [3] * 20
    finally:
        engine.stop()


def test_without_a_pause_an_update_lets_running_requests_finish_first(engine, changed):
    gate = hold_after(engine, 1)
    running = engine.submit([PROMPT], [{**LONG, "max_new_tokens": 40}])
    call_between_chunks(engine, gate, lambda: engine.flush_cache())
    engine.update_weights(changed, "1")
    assert [s.version for s in running.result(WAIT_S)[0].spans] == ["0"]
    assert [s.version for s in run(engine, {"max_new_tokens": 2, "ignore_eos": True})[0].spans] == ["1"]


def test_a_flush_is_refused_while_samples_are_frozen(engine, changed):
    gate = hold_after(engine, 1)
    future = engine.submit([PROMPT], [LONG])
    call_between_chunks(engine, gate, lambda: engine.pause("in_place"))
    before = engine.weights
    with pytest.raises(WeightUpdateError, match="frozen in place"):
        engine.update_weights(changed, "1", flush_cache=True)
    assert engine.weights == before
    assert engine.broken is None
    engine.abort(abort_all=True)
    assert len(future.result(WAIT_S)[0].tokens) == 4


def spoil(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), r"up_proj\.weight is missing"),
        (lambda w: w.update(extra=torch.zeros(2)), "extra is not in the model"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"model\.norm\.weight is \(3,\)"),
        (lambda w: w.update({"model.norm.weight": w["model.norm.weight"].double()}), "float64, the model has"),
        (lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"] + 1}), r"lm_head\.weight differs"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_changes(engine, changed, change, words):
    before, tokens = engine.weights, run(engine)[0].tokens
    spoil(changed, change)
    with pytest.raises(WeightUpdateError, match=words) as caught:
        engine.update_weights(changed, "1")
    assert not caught.value.touched
    assert engine.weights == before
    assert engine.broken is None
    assert run(engine)[0].tokens == tokens


def test_a_truncated_file_is_refused_and_nothing_changes(engine, changed):
    file = changed / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightUpdateError, match="nothing was changed"):
        engine.update_weights(changed, "1")
    assert engine.broken is None
    with pytest.raises(WeightUpdateError, match=r"holds no \*\.safetensors"):
        engine.update_weights(changed / "nowhere", "1")


def test_corrupted_weights_stop_the_engine_until_a_good_load(engine, changed, tiny_model):
    good = engine.update_weights(changed, "1").hash
    file = changed / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x40
    file.write_bytes(data)
    with pytest.raises(WeightUpdateError, match=f"expected {good}") as caught:
        engine.update_weights(changed, "2", expect_hash=good)
    assert caught.value.touched
    assert engine.broken is not None
    with pytest.raises(RequestError, match="unhealthy") as refused:
        run(engine)
    assert refused.value.status == 503
    report = engine.update_weights(tiny_model, "3")
    assert report.hash not in (good, "")
    assert engine.broken is None
    assert run(engine)[0].spans[0].version == "3"


def test_the_hash_says_which_weights_are_loaded(engine, changed, tiny_model):
    first = engine.weights.hash
    assert engine.update_weights(changed).hash != first
    assert engine.update_weights(tiny_model).hash == first
    assert engine.weights.version == "0"


def test_a_narrower_published_type_is_taken_and_hashed_as_it_was_published(engine, changed):
    spoil(changed, lambda w: w.update({name: tensor.bfloat16() for name, tensor in w.items()}))
    published = hash_tensors(load_file(changed / "model.safetensors"))
    assert engine.update_weights(changed, "1", expect_hash=published).hash == published
    assert engine.model.module.dtype == torch.float32


def test_a_wider_published_type_is_refused(tiny_model, changed):
    engine = EmbeddedEngine(EngineSettings(model_path=tiny_model, dtype="bfloat16", threads=1))
    try:
        with pytest.raises(WeightUpdateError, match="float32, the model has"):
            engine.update_weights(changed, "1")
    finally:
        engine.stop()


def test_weights_are_replaced_in_the_same_tensors(engine, changed):
    before = {name: p.data_ptr() for name, p in engine.model.module.named_parameters()}
    engine.update_weights(changed, "1")
    assert {name: p.data_ptr() for name, p in engine.model.module.named_parameters()} == before
    new = load_file(changed / "model.safetensors")
    assert all(torch.equal(p, new[name]) for name, p in engine.model.module.named_parameters())


def test_logits_that_are_not_finite_end_the_sample(engine, changed):
    spoil(changed, lambda w: w["model.norm.weight"].fill_(float("nan")))
    engine.update_weights(changed, "1")
    (sequence,) = run(engine)
    assert sequence.finish_reason is not None
    assert "not finite" in sequence.finish_reason["message"]


def test_stop_answers_what_runs_and_ends_the_thread(tiny_model):
    engine = EmbeddedEngine(EngineSettings(model_path=tiny_model, threads=1))
    future = engine.submit([PROMPT], [LONG])
    engine.stop()
    engine.stop()
    assert future.result(WAIT_S)[0].finish_reason["type"] == "abort"
    assert engine.broken is not None
    with pytest.raises(RequestError):
        engine.submit([PROMPT], [LONG])
