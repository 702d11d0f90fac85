"""Weights come into either engine in the same ways, whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.transport.group import Group
from hpcrl.engines.client import EngineRefused, WeightUpdate
from hpcrl.engines.completion import Sampling
from hpcrl.engines.group_update import Channel, GroupUpdate
from hpcrl.engines.tensor_update import update_from_tensors
from hpcrl.engines.verify import check_loaded

pytestmark = pytest.mark.slow

WAIT_S = 120.0
NEAR = 0.02


def holds_the_changed_weights(engine, weights, prompts, version: int) -> None:
    sequence = prompts[0] * 3
    (scores,) = engine.client.score([sequence], seconds=WAIT_S)
    assert np.abs(scores - weights.changed_reference.logprobs(sequence)).max() < NEAR
    assert np.abs(scores - weights.reference.logprobs(sequence)).max() > 2 * NEAR
    assert engine.client.model_info().version == version
    (one,) = engine.client.generate([prompts[0]], Sampling(max_new_tokens=4, ignore_eos=True), seconds=WAIT_S)[0]
    assert one.versions.tolist() == [version] * 4


@pytest.mark.parametrize("pause", ["abort", "retract", "in_place", None])
def test_from_a_folder(engine, weights, prompts, pause):
    # What is in the cache by the old weights must not be used on.
    engine.client.score([prompts[0] * 3], seconds=WAIT_S)
    if pause:
        engine.client.pause(pause)
    engine.client.update_weights_from_disk(weights.changed_folder, 5)
    if pause:
        engine.client.continue_()
    holds_the_changed_weights(engine, weights, prompts, 5)
    assert engine.client.model_info().model_path == str(weights.changed_folder)


def test_a_folder_that_does_not_do_changes_nothing(engine, weights, prompts, tmp_path: Path):
    with pytest.raises(EngineRefused):
        engine.client.update_weights_from_disk(tmp_path / "none", 6)
    sequence = prompts[0] * 3
    (scores,) = engine.client.score([sequence], seconds=WAIT_S)
    assert np.abs(scores - weights.reference.logprobs(sequence)).max() < NEAR
    assert engine.client.model_info().version == 0


def test_a_load_that_did_not_take_is_found_out(engine, weights, tmp_path: Path):
    """The folder that the engine was told of is not what it loaded."""
    engine.client.update_weights_from_disk(weights.changed_folder, 7)
    if engine.kind == "embedded":
        with pytest.raises(EngineRefused, match="they are not those that were published"):
            engine.client.update_weights_from_disk(weights.model, 8, expect_hash="0123")
        engine.client.update_weights_from_disk(weights.model, 0)
        return
    with pytest.raises(EngineRefused, match="the engine did not take the version whole"):
        check_loaded(engine.client, weights.model)
    with pytest.raises(EngineRefused, match="version 8 was loaded, yet the engine says that it runs 7"):
        engine.client.check_version(8, WeightUpdate("", None))


def sender_of(tensors, name: str, port: int) -> tuple[Channel, threading.Thread, threading.Event]:
    go = threading.Event()

    def send() -> None:
        group = Group("127.0.0.1", port, rank=0, size=2, name=name, backend="gloo", seconds=WAIT_S)
        go.wait(WAIT_S)
        for tensor in tensors.values():
            group.broadcast(tensor.contiguous())
        group.close()

    channel = Channel(
        name,
        "127.0.0.1",
        port,
        tuple(tensors),
        tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()),
        tuple(tuple(tensor.shape) for tensor in tensors.values()),
    )
    return channel, threading.Thread(target=send, daemon=True), go


def test_broadcast_by_two_senders(engine, weights, prompts, a_port):
    names = list(weights.changed)
    parts = [{name: weights.changed[name] for name in names[index::2]} for index in range(2)]
    senders = [sender_of(part, f"weights-{index}-1", a_port()) for index, part in enumerate(parts)]
    update = GroupUpdate(engine.client, [one[0] for one in senders], rank=1, size=2, backend="gloo", seconds=WAIT_S)
    for _, thread, _ in senders:
        thread.start()
    update.join()
    engine.client.pause("in_place")
    for _, _, go in senders:
        go.set()
    update.update(8, expect_hash=None, seconds=WAIT_S)
    engine.client.continue_()
    for _, thread, _ in senders:
        thread.join(WAIT_S)
    holds_the_changed_weights(engine, weights, prompts, 8)
    update.leave()


def test_out_of_another_process_of_the_node(engine, weights, prompts, shared_memory_left):
    ours = f"torch_{os.getpid()}_"
    before = shared_memory_left(ours)
    engine.client.pause("in_place")
    update = update_from_tensors(engine.client, weights.changed, 9, seconds=WAIT_S)
    engine.client.continue_()
    holds_the_changed_weights(engine, weights, prompts, 9)
    assert update.weight_hash is None or engine.kind == "embedded"
    assert shared_memory_left(ours) == before


def test_tensors_that_do_not_fit_are_refused(engine, weights):
    if engine.kind == "sglang":
        pytest.skip("SGLang ends itself; its role is started again then")
    wrong = {**weights.changed, "model.norm.weight": torch.ones(7, dtype=torch.bfloat16)}
    engine.client.pause("in_place")
    with pytest.raises(EngineRefused):
        update_from_tensors(engine.client, wrong, 10, seconds=WAIT_S)
    # A whole version mends it.
    engine.client.update_weights_from_disk(weights.model, 0)
    engine.client.continue_()
