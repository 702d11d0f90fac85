import shutil

import pytest
import torch

from hpcrl.checkpoint.state import StateError, load_state, save_state, saves


def save(folder, step, value, caller=None, keep=2):
    return save_state(
        folder, step, {"x": torch.full((4,), value)}, caller or {}, rank=0, world_size=1, barrier=lambda: None, keep=keep
    )


def load(folder):
    tensors = {"x": torch.zeros(4)}
    found = load_state(folder, tensors, rank=0, world_size=1)
    return found, tensors["x"].tolist()


def test_the_newest_save_comes_back_with_the_callers_record_and_random_state(tmp_path):
    save(tmp_path, 1, 1.0)
    torch.manual_seed(3)
    save(tmp_path, 2, 2.0, {"cursor": {"epoch": 4}})
    expected = torch.rand(3)
    assert load(tmp_path) == ((2, {"cursor": {"epoch": 4}}), [2.0] * 4)
    assert torch.equal(torch.rand(3), expected)


def test_no_save_changes_nothing(tmp_path):
    assert load(tmp_path / "nowhere") == (None, [0.0] * 4)


def test_the_newest_saves_stay(tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step, float(step))
    assert [step for step, _ in saves(tmp_path)] == [2, 10]


def test_a_partial_save_is_never_loaded_and_goes_with_the_next(tmp_path):
    whole = save(tmp_path, 1, 1.0)
    shutil.copytree(whole, tmp_path / ".step-00000002.partial")
    unmarked = shutil.copytree(whole, tmp_path / "step-00000003")
    (unmarked / "record.json").unlink()
    assert load(tmp_path) == ((1, {}), [1.0] * 4)
    save(tmp_path, 4, 4.0)
    assert not list(tmp_path.glob(".step-*"))


def test_a_step_saved_again_replaces_the_first(tmp_path):
    save(tmp_path, 1, 1.0)
    save(tmp_path, 1, 5.0)
    assert load(tmp_path) == ((1, {}), [5.0] * 4)


def test_damage_names_the_save(tmp_path):
    path = save(tmp_path, 1, 1.0)
    (path / ".metadata").unlink()
    with pytest.raises(StateError, match="step-00000001 cannot be read"):
        load(tmp_path)


def test_another_models_save_is_refused(tmp_path):
    save(tmp_path, 1, 1.0)
    with pytest.raises(StateError, match="cannot be read"):
        load_state(tmp_path, {"y": torch.zeros(4)}, rank=0, world_size=1)
    with pytest.raises(StateError, match="cannot be read"):
        load_state(tmp_path, {"x": torch.zeros(5)}, rank=0, world_size=1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be written to"):
        save(tmp_path / "file", 1, 1.0)
