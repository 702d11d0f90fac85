"""Which save a trainer goes on from, and which it refuses."""

import json
import os
import pickle

import pytest
import torch

from hpcrl.checkpoint.cursor import Cursor, read_cursor
from hpcrl.checkpoint.state import rng
from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.layout import SaveName, StateError
from hpcrl.checkpoint.state.manifest import Manifest
from hpcrl.checkpoint.state.memory import SharedMemory, copy
from hpcrl.checkpoint.state.plan import Planner
from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.request import Commit, Done, Job, decode_reply, encode
from hpcrl.checkpoint.state.restore import Expected, restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.writing import Writer
from hpcrl.run.failpoints import armed
from hpcrl.run.sealed import write_sealed


def save(folder, step, attempt=1, number=1, tensors=None, **more):
    planner = Planner(Alone())
    planned = planner.plan(tensors or {"w": torch.full((4,), float(step))})
    memory = SharedMemory(planned.places)
    for item, target in zip(planned.plan.items, memory.tensors, strict=True):
        copy(planner.tensor(item), target)
    cursor = Cursor(step=step).to_record()
    manifest = Manifest(run_id="mine", attempt=attempt, step=step, number=number, cursor=cursor, **more)
    (folder / str(manifest.name)).mkdir(parents=True)
    job = Job(
        folder=str(folder),
        attempt=attempt,
        step=step,
        number=number,
        rank=0,
        world_size=1,
        rng=rng.capture(),
        commit=Commit(manifest=manifest, trained=b"", keep=Keep(last=9), parts_s=1),
    )
    done = decode_reply(Writer(pickle.dumps(planned), os.dup(memory.descriptor)).answer(encode(job)))
    assert isinstance(done, Done), done
    return folder / str(manifest.name)


def load(folder, expected=None, **tensors):
    tensors = tensors or {"w": torch.zeros(4)}
    manifest = restore(folder, tensors, Alone(), expected, late_s=0)
    return manifest, tensors


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_no_save_changes_nothing(tmp_path):
    manifest, tensors = load(tmp_path / "nowhere")
    assert manifest is None
    assert tensors["w"].tolist() == [0.0] * 4


def test_the_newest_comes_back_with_the_random_state_and_an_unfinished_one_is_told_of(tmp_path, caplog):
    save(tmp_path, 1)
    torch.manual_seed(3)
    save(tmp_path, 2, number=2)
    drawn = torch.rand(3)
    (tmp_path / str(SaveName(1, 3, 3))).mkdir()
    manifest, tensors = load(tmp_path)
    assert manifest is not None
    assert manifest.step == 2
    assert tensors["w"].tolist() == [2.0] * 4
    assert torch.equal(torch.rand(3), drawn)
    assert f"unfinished saves in {tmp_path} are ignored: step-00000003.a1.3" in caplog.text


def test_a_clock_set_back_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcrl.checkpoint.state.writing.time.time", lambda: 2e9)
    save(tmp_path, 1)
    monkeypatch.setattr("hpcrl.checkpoint.state.writing.time.time", lambda: 1e9)
    path = save(tmp_path, 2, number=2)
    os.utime(path, (1, 1))
    assert load(tmp_path)[0].step == 2


def test_a_later_attempts_save_is_taken_even_of_a_lower_step(tmp_path):
    save(tmp_path, 9, attempt=1, number=5)
    save(tmp_path, 7, attempt=2, number=1)
    assert load(tmp_path)[0].name == SaveName(2, 7, 1) == SaveName(2, read_cursor(tmp_path).step, 1)


def test_when_none_is_whole_a_run_does_not_begin_anew(tmp_path):
    for number in (1, 2):
        flip(save(tmp_path, number, number=number) / "__0_0.distcp")
    with pytest.raises(StateError, match=r"no save in .* is whole: see damaged\.json in step-0.*1\.a1\.1, step-0.*2\.a1\.2"):
        load(tmp_path)
    with pytest.raises(StateError, match="is whole"):
        load(tmp_path)
    why = json.loads((tmp_path / str(SaveName(1, 2, 2)) / "damaged.json").read_text())["why"]
    assert "__0_0.distcp is damaged: its checksum is" in why


def test_a_damaged_save_that_cannot_be_marked_is_not_passed_over(tmp_path):
    """Other roles read the cursor for themselves: they would go on from it."""
    save(tmp_path, 1)
    path = save(tmp_path, 2, number=2)
    flip(path / "rng-0.pt")
    with armed("disk.create~damaged=errno:EROFS"), pytest.raises(StateError, match="cannot be written down"):
        load(tmp_path)
    flip(path / "rng-0.pt")
    flip(path / "manifest.json")
    with armed("disk.create~damaged=errno:EROFS"), pytest.raises(StateError, match="cannot be written down"):
        load(tmp_path)


def test_a_save_from_the_future_is_refused(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2, attempt=9)
    with pytest.raises(StateError, match=r"of attempt 9, and this is attempt 3: it comes from the future"):
        load(tmp_path, Expected(attempt=3))
    assert load(tmp_path, Expected(attempt=9))[0].step == 2
    record = json.loads((path / "manifest.json").read_text())
    write_sealed(path / "manifest.json", record | {"layout": 2})
    with pytest.raises(StateError, match="has layout 2, this hpcrl reads 1"):
        load(tmp_path)


def test_another_runs_save_is_refused(tmp_path):
    state = tmp_path / "run" / "state"
    save(state, 1)
    (tmp_path / "run" / "run.json").write_text(json.dumps({"run_id": "another"}))
    with pytest.raises(StateError, match="is of run 'mine', not of 'another'"):
        load(state)


def test_another_dataset_is_refused(tmp_path):
    save(tmp_path, 1, identity=Identity(dataset={"file": "1"}))
    assert load(tmp_path, Expected(identity=Identity(dataset={"file": "1"})))[0].step == 1
    with pytest.raises(StateError, match="dataset file: was 1, now 2"):
        load(tmp_path, Expected(identity=Identity(dataset={"file": "2"})))


@pytest.mark.parametrize("tensors", [{"other": torch.zeros(4)}, {"w": torch.zeros(5)}])
def test_a_save_without_a_tensor_or_of_another_shape_is_refused(tmp_path, tensors):
    path = save(tmp_path, 1)
    with pytest.raises(StateError, match=f"the trainer's state in {path} cannot be read"):
        load(tmp_path, **tensors)
