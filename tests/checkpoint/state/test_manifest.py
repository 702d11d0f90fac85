import json

import pytest

from hpcrl.checkpoint.cursor import Cursor, read_cursor
from hpcrl.checkpoint.state.layout import SaveName, StateError, look
from hpcrl.checkpoint.state.manifest import (
    Manifest,
    QueueSnapshot,
    check_files,
    manifests,
    mark_damaged,
    newest,
    read_manifest,
    write_manifest,
)
from hpcrl.run.disk import FileDamaged, write_file
from hpcrl.run.failpoints import armed
from hpcrl.run.sealed import write_sealed


def save(folder, step, attempt=1, number=1, files=1, **more):
    name = SaveName(attempt, step, number)
    (folder / str(name)).mkdir(parents=True)
    records = [write_file(folder / str(name) / f"shard-{index}", [bytes([index % 256]) * 10]) for index in range(files)]
    cursor = Cursor(step=step, prompts=4 * step, beyond=frozenset({4 * step + 2})).to_record()
    manifest = Manifest(run_id="mine", attempt=attempt, step=step, number=number, cursor=cursor, files=records, **more)
    write_manifest(folder, manifest)
    return manifest


def rewrite(folder, name, **changes):
    path = folder / str(name) / "manifest.json"
    write_sealed(path, json.loads(path.read_text()) | changes)


def flip(path, place=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    written = save(tmp_path, 12, attempt=3, number=7, queue=QueueSnapshot(2, 8, "xxh3_128:0"), metrics={"reward": 0.5})
    assert read_manifest(tmp_path, written.name, "mine") == written == newest(tmp_path, "mine")
    assert list(check_files(tmp_path, written)) == []


def test_a_save_is_committed_once(tmp_path):
    written = save(tmp_path, 1)
    with pytest.raises(StateError, match="committed once"):
        write_manifest(tmp_path, written)


def test_the_newest_is_chosen_by_attempt_step_and_number_and_not_by_clocks(tmp_path):
    for attempt, step, number, t in ((1, 8, 4, 400.0), (1, 14, 5, 500.0), (2, 10, 1, 30.0), (2, 10, 2, 20.0), (2, 9, 3, 10.0)):
        save(tmp_path, step, attempt, number, t=t)
    found = newest(tmp_path)
    assert found is not None
    assert found.name == SaveName(2, 10, 2)
    assert read_cursor(tmp_path) == Cursor(step=10, prompts=40, beyond=frozenset({42}))


def test_saves_that_are_unfinished_or_damaged_do_not_count(tmp_path):
    save(tmp_path, 1)
    (tmp_path / str(SaveName(1, 2, 2))).mkdir()
    mark_damaged(tmp_path, save(tmp_path, 3, number=3).name, "one byte")
    flip(tmp_path / str(save(tmp_path, 4, number=4).name) / "manifest.json", place=40)
    assert read_cursor(tmp_path).step == 1
    assert [isinstance(one, FileDamaged) for one in manifests(tmp_path)] == [True, False]


def test_without_saves_a_run_is_at_its_start(tmp_path):
    assert newest(tmp_path) is None
    assert read_cursor(tmp_path / "nowhere") == Cursor()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layout": 2, "files": "of another kind"}, r"manifest\.json has layout 2, this hpcrl reads 1: go on with the one"),
        ({"run_id": "another"}, r"manifest\.json is of run 'another', not of 'mine': take its folder out"),
    ],
)
def test_what_must_not_be_passed_over(tmp_path, changes, text):
    state = tmp_path / "a run of mine" / "state"
    save(state, 1)
    rewrite(state, save(state, 2, number=2).name, **changes)
    with pytest.raises(StateError, match=text):
        newest(state, "mine")
    (state.parent / "run.json").write_text(json.dumps({"run_id": "mine"}))
    with pytest.raises(StateError, match=text):
        read_cursor(state)


@pytest.mark.parametrize("changes", [{"step": "three"}, {"files": [{"name": "x"}]}, {"number": 5}])
def test_a_manifest_of_the_wrong_kind_or_of_another_save_is_damaged(tmp_path, changes):
    save(tmp_path, 1)
    name = save(tmp_path, 2, number=2).name
    rewrite(tmp_path, name, **changes)
    with pytest.raises(FileDamaged, match=str(name)):
        read_manifest(tmp_path, name)
    assert read_cursor(tmp_path).step == 1


def test_every_damaged_file_is_named_by_the_rank_that_looks_at_it(tmp_path):
    state = tmp_path / "with space" / "東京"
    manifest = save(state, 5, files=9)
    folder = state / str(manifest.name)
    flip(folder / "shard-3", place=9)
    (folder / "shard-7").unlink()
    told = [list(check_files(state, manifest, share=(rank, 4))) for rank in range(4)]
    flat = [text for one in told for text in one]
    assert len(flat) == 2
    assert any(f"{folder / 'shard-3'} is damaged" in text for text in flat)
    assert any(f"{folder / 'shard-7'} cannot be checked" in text for text in flat)
    assert sorted(flat) == sorted(check_files(state, manifest))


def test_a_manifest_that_cannot_be_written_leaves_the_save_unfinished(tmp_path):
    save(tmp_path, 1)
    for point in ("manifest.begin", "manifest.written", "disk.fsync~manifest", "disk.rename~manifest"):
        number = len(look(tmp_path).partial) + 2
        with armed(f"{point}=errno:ENOSPC"), pytest.raises(OSError, match="No space"):
            save(tmp_path, 2, number=number)
        assert read_cursor(tmp_path).step == 1


def test_three_thousand_shards(tmp_path):
    manifest = save(tmp_path, 1, files=3000)
    flip(tmp_path / str(manifest.name) / "shard-2999")
    again = newest(tmp_path)
    assert again is not None
    assert len(again.files) == 3000
    (text,) = check_files(tmp_path, again)
    assert "shard-2999 is damaged" in text
