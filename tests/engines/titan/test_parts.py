"""A batch trained in parts, and going back to where it began."""

from __future__ import annotations

import pytest
import torch

from hpcrl.checkpoint.state.saver import About, Saved
from hpcrl.engines.titan.figures import joined


def groups_of(samples):
    return [[s for s in samples if s.group == group] for group in sorted({s.group for s in samples})]


def test_a_part_is_trained_as_a_batch_of_one_update_and_the_step_counts_once(tiny_model, trainer_of, random_batch, weights_of):
    parts, batches = trainer_of(tiny_model), trainer_of(tiny_model, lr_schedule="constant")
    figures = []
    for group in groups_of(random_batch()):
        figures.append(parts.train_part(group))
        assert parts.step == 0
        whole = batches.train_batch(group)
        assert (figures[-1]["loss"], figures[-1]["grad_norm"]) == (whole["loss"], whole["grad_norm"])
    parts.end_parts()
    assert parts.step == 1
    mine, others = weights_of(parts), weights_of(batches)
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    step = joined(figures)
    assert step["tokens"] == sum(part["tokens"] for part in figures)
    assert step["updates"] == 3
    assert step["logprob_gap_max"] == max(part["logprob_gap_max"] for part in figures)
    means = sum(part["entropy"] * part["tokens"] for part in figures) / step["tokens"]
    assert step["entropy"] == pytest.approx(means)
    assert set(step) == set(figures[0])


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_going_back_leaves_no_trace_of_the_parts(compute, tmp_path, tiny_model, trainer_of, random_batch, weights_of):
    tried, plain = (trainer_of(tiny_model, compute_dtype=compute) for _ in range(2))
    for trainer in (tried, plain):
        trainer.train_batch(random_batch(0))
    tried.hold()
    torch.manual_seed(1)
    for seed in (5, 6):
        tried.train_part(random_batch(seed))
    # A save that begins after going back is of the state before the parts.
    tried.roll_back()
    tried.begin_save(tmp_path, About())
    assert isinstance(tried.finish_save(seconds=300), Saved)
    resumed = trainer_of(tiny_model, compute_dtype=compute)
    resumed.load_state(tmp_path)
    expected = plain.train_batch(random_batch(1))
    for trainer in (tried, resumed):
        figures = trainer.train_batch(random_batch(1))
        assert (figures["loss"], figures["grad_norm"], trainer.step) == (expected["loss"], expected["grad_norm"], 2)
        mine, others = weights_of(trainer), weights_of(plain)
        assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_there_is_nothing_to_go_back_to_at_first(tiny_model, trainer_of):
    with pytest.raises(RuntimeError, match="nothing was kept"):
        trainer_of(tiny_model).roll_back()
