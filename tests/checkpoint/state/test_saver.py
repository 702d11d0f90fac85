"""Saves as a trainer makes them, with the writer in its own process."""

import os
import threading

import pytest
import torch

from hpcrl.checkpoint.cursor import Cursor, read_cursor
from hpcrl.checkpoint.state.layout import SaveName, StateError, look
from hpcrl.checkpoint.state.manifest import manifests
from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.restore import restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saver import About, NotSaved, Saved, Saver
from hpcrl.run.failpoints import VARIABLE, armed
from hpcrl.run.stop import wait_for

pytestmark = pytest.mark.slow


def make_tensors():
    return {"w": torch.zeros(300, 100), "step": torch.tensor(0.0)}


def set_to(tensors, value):
    for tensor in tensors.values():
        tensor.fill_(value)


def about(step):
    return About(run_id="mine", cursor=Cursor(step=step, prompts=step))


@pytest.fixture
def saver(tmp_path):
    made = Saver(tmp_path / "a run, 東京" / "state", Alone(), keep=Keep(last=3))
    yield made
    made.close()


def restored(folder):
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in make_tensors().items()}
    manifest = restore(folder, tensors, Alone(), late_s=0)
    values = {float(tensor.flatten()[0]) for tensor in tensors.values()}
    assert all((tensor == tensor.flatten()[0]).all() for tensor in tensors.values())
    return manifest and manifest.step, values


def test_what_is_saved_is_what_was_there_at_the_begin_though_training_goes_on(saver):
    tensors = make_tensors()
    for step in (1, 2, 3):
        set_to(tensors, float(step))
        with armed("state.stage@1+=sleep:0.05"):
            saver.begin(tensors, step, about(step))
            assert saver.busy
            saver.copied()
        set_to(tensors, -5.0)
        ended = saver.finish(seconds=120)
        assert isinstance(ended, Saved), ended
        assert ended.stalled_s >= 0.05
        assert (ended.path, ended.name) == (saver.folder / str(ended.name), SaveName(1, step, step))
        assert not saver.busy
        assert restored(saver.folder) == (step, {float(step)})
    assert saver.poll() is None


def test_a_save_does_not_begin_before_the_end_of_the_one_before_was_heard(saver):
    saver.begin(make_tensors(), 1, about(1))
    with pytest.raises(StateError, match="before the end of the one before"):
        saver.begin(make_tensors(), 2, about(2))
    assert isinstance(saver.finish(seconds=120), Saved)


def test_a_writer_that_is_killed_is_named_and_another_one_writes_the_next_save(saver, monkeypatch):
    saver.begin(make_tensors(), 1, about(1))
    assert isinstance(saver.finish(seconds=120), Saved)
    saver._writer.close()
    monkeypatch.setenv(VARIABLE, "shard.written=kill")
    saver.begin(make_tensors(), 2, about(2))
    ended = saver.finish(seconds=120)
    assert isinstance(ended, NotSaved)
    assert "trainer rank 0 on " in ended.error
    assert "the state of step 2 cannot be saved: the process that writes it" in ended.error
    assert "was killed by signal 9" in ended.error
    assert look(saver.folder).partial == (SaveName(1, 2, 2),)
    monkeypatch.delenv(VARIABLE)
    saver.begin(make_tensors(), 2, about(2))
    assert isinstance(saver.finish(seconds=120), Saved)
    assert look(saver.folder).partial == ()
    assert [name.number for name in look(saver.folder).committed] == [1, 3]


def test_a_full_disk_under_the_writer_spares_the_save_before(saver, monkeypatch):
    saver.begin(make_tensors(), 1, about(1))
    assert isinstance(saver.finish(seconds=120), Saved)
    saver._writer.close()
    monkeypatch.setenv(VARIABLE, "disk.write~.distcp@1+=errno:ENOSPC")
    saver.begin(make_tensors(), 2, about(2))
    ended = saver.finish(seconds=120)
    assert isinstance(ended, NotSaved)
    assert str(saver.folder / str(SaveName(1, 2, 2)) / "__0_0.distcp") in ended.error
    assert restored(saver.folder) == (1, {0.0})


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS"])
def test_a_folder_that_cannot_be_made_is_no_save(saver, code):
    with armed(f"disk.mkdir~step-=errno:{code}"):
        saver.begin(make_tensors(), 1, about(1))
        assert saver.busy
        ended = saver.poll()
    assert isinstance(ended, NotSaved)
    assert str(saver.folder / str(SaveName(1, 1, 1))) in ended.error
    assert "trainer rank 0 on " in ended.error
    assert not saver.busy
    assert read_cursor(saver.folder) == Cursor()


def test_a_number_that_another_has_taken_is_passed_over(saver):
    with armed("disk.mkdir~step-=errno:EEXIST"):
        saver.begin(make_tensors(), 1, about(1))
    ended = saver.finish(seconds=120)
    assert isinstance(ended, Saved)
    assert ended.name.number == 2


def test_a_writer_that_takes_too_long_is_no_longer_waited_for_and_still_commits(saver, monkeypatch):
    monkeypatch.setenv(VARIABLE, "manifest.begin=sleep:1")
    saver.begin(make_tensors(), 1, about(1))
    saver.copied()
    ended = saver.finish(seconds=0.1)
    assert isinstance(ended, NotSaved)
    assert "waited 0.1 s for the save of step 1 to be committed" in ended.error
    assert isinstance(saver.finish(seconds=120), Saved)


def test_closing_gives_up_a_save_under_way(saver, monkeypatch):
    monkeypatch.setenv(VARIABLE, "commit.begin=sleep:60")
    saver.begin(make_tensors(), 1, about(1))
    save = saver.folder / str(SaveName(1, 1, 1))
    wait_for("the part to be written", lambda: (save / "part-0.json").exists() or None, seconds=120)
    saver.close()
    saver.close()
    assert look(saver.folder).committed == ()


def test_two_runs_in_one_root_at_once(tmp_path):
    savers = [Saver(tmp_path / name / "state", Alone(), keep=Keep(last=1)) for name in ("one", "two")]

    def save(number):
        tensors = make_tensors()
        for step in (1, 2, 3):
            set_to(tensors, 10.0 * number + step)
            savers[number].begin(tensors, step, About(run_id=str(number)))
            assert isinstance(savers[number].finish(seconds=120), Saved)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, made in enumerate(savers):
        made.close()
        assert restored(made.folder) == (3, {10.0 * number + 3})
        assert [manifest.run_id for manifest in manifests(made.folder)] == [str(number)]
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]
