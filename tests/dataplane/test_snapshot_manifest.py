"""A snapshot exists when its manifest does; a damaged one is passed over; older ones go only after a commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.gather import Counts
from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.manifest import commit, committed, next_number, read_manifest, snapshot_folder, write_node
from hpcrl.dataplane.snapshot.merge import check_schema
from hpcrl.dataplane.snapshot.read import newest_snapshot
from hpcrl.dataplane.snapshot.retain import retain
from hpcrl.recipe import Column, Stream
from hpcrl.run.digest import digest_bytes, digest_file
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.failpoints import armed

TOKENS = Column(name="tokens", dtype="int32", ragged=True)
REWARD = Column(name="reward", dtype="float32")
STREAM = Stream(name="s", columns=(TOKENS, REWARD))


def block(first: int, *, tokens: bool = True, reward: bool = True, rows: int = 2) -> SavedBlock:
    ids, columns = np.arange(first, first + rows), {}
    if tokens:
        columns["tokens"] = pack("s", TOKENS, ids, [np.arange(k % 5, dtype=np.int32) for k in ids])
    if reward:
        columns["reward"] = pack("s", REWARD, ids, ids.astype(np.float32))
    return SavedBlock("s", first, rows, columns, Labels(prompts=[first] * rows) if tokens else Labels())


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "a rün", name="tiny", recipe_json="{}")


def take(attempt: Attempt, *firsts: int, nodes: tuple[str, ...] = ("n1",)) -> Path:
    number = next_number(attempt)
    blocks = [block(first) for first in firsts]
    files = [
        write_node(attempt, number, node, [STREAM], blocks[k :: len(nodes)], policy_version=number)
        for k, node in enumerate(nodes)
    ]
    commit(attempt, number, files, policy_version=number, ledger_seq=10 * number, visible_s=0)
    return snapshot_folder(attempt, number)


def firsts(run: RunDirectory, attempt: int | None = None) -> list[int]:
    snapshot = newest_snapshot(run, attempt)
    assert snapshot is not None
    with snapshot.open() as merged:
        return sorted(b.first for b in merged.blocks("s"))


def test_what_the_manifest_says(run):
    attempt = run.new_attempt()
    folder = take(attempt, 0, 10, 20, nodes=("gpu-1.cluster", "../x"))
    assert folder == attempt.path / "snapshots" / "00000001"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "node-%2E%2E%2Fx.h5", "node-gpu-1.cluster.h5"]
    manifest = read_manifest(folder, run.run_id)
    assert (manifest.run_id, manifest.attempt, manifest.number) == (run.run_id, 1, 1)
    assert (manifest.policy_version, manifest.ledger_seq) == (1, 10)
    assert manifest.streams["s"].rows == 6
    assert [file.streams["s"].blocks for file in manifest.files] == [2, 1]
    assert all((folder / f.name).stat().st_size == f.size and digest_file(folder / f.name) == f.digest for f in manifest.files)
    assert json.loads((folder / "manifest.json").read_text())["layout"] == 1


def test_none_without_a_manifest(run):
    assert newest_snapshot(run) is None
    attempt = run.new_attempt()
    write_node(attempt, 1, "n1", [STREAM], [block(0)], policy_version=0)
    assert newest_snapshot(run) is None
    assert committed(run) == []
    assert next_number(attempt) == 2


def test_the_newest_by_attempt_and_number_whatever_the_clock(run, monkeypatch):
    first = run.new_attempt()
    monkeypatch.setattr("hpcrl.dataplane.snapshot.manifest.time.time", lambda: 4e9)
    take(first, 1)
    take(first, 2)
    second = run.new_attempt()
    assert firsts(run) == [2]
    monkeypatch.setattr("hpcrl.dataplane.snapshot.manifest.time.time", lambda: 1e9)
    take(second, 3)
    assert firsts(run) == [3]
    assert firsts(run, 1) == [2]
    # A process of the first attempt that is late.
    take(first, 4)
    assert firsts(run) == [3]


def test_a_commit_waits_for_every_file_in_its_size(run):
    attempt = run.new_attempt()
    record = write_node(attempt, 1, "n1", [STREAM], [block(0)], policy_version=0)
    path = snapshot_folder(attempt, 1) / record.name
    path.rename(path.with_suffix(".away"))
    with pytest.raises(SnapshotError, match=rf"not committed.*node-n1\.h5 has no bytes of {record.size}"):
        commit(attempt, 1, [record], policy_version=0, ledger_seq=0, visible_s=0)
    path.write_bytes(b"short")
    with pytest.raises(SnapshotError, match=r"node-n1\.h5 has 5 bytes of"):
        commit(attempt, 1, [record], policy_version=0, ledger_seq=0, visible_s=0)
    assert newest_snapshot(run) is None
    path.with_suffix(".away").rename(path)
    commit(attempt, 1, [record], policy_version=0, ledger_seq=0, visible_s=0)
    with pytest.raises(SnapshotError, match="committed already"):
        commit(attempt, 1, [record], policy_version=0, ledger_seq=0)


def test_a_number_may_be_written_again_until_it_is_committed(run):
    attempt = run.new_attempt()
    write_node(attempt, 1, "n1", [STREAM], [block(0), block(10)], policy_version=0)
    record = write_node(attempt, 1, "n1", [STREAM], [block(20)], policy_version=0)
    commit(attempt, 1, [record], policy_version=0, ledger_seq=0, visible_s=0)
    assert firsts(run) == [20]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["node-n1.h5", "manifest.json"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.35, 0.5, 0.77, 0.999])
def test_any_byte_that_flips_is_found_and_the_one_before_is_used(run, name, part):
    attempt = run.new_attempt()
    old, new = take(attempt, 1), take(attempt, 2)
    flip(new / name, int((new / name).stat().st_size * part))
    told: list[str] = []
    snapshot = newest_snapshot(run, tell=told.append)
    assert snapshot is not None
    assert snapshot.folder == old
    assert len(told) == 1
    assert str(new / name) in told[0]
    assert told[0].endswith(f"using snapshot {old} instead")


@pytest.mark.parametrize(
    "spoil", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-3]), lambda p: p.write_bytes(b"")]
)
@pytest.mark.parametrize("name", ["node-n1.h5", "manifest.json"])
def test_missing_and_cut_files(run, name, spoil):
    attempt = run.new_attempt()
    take(attempt, 1)
    spoil(take(attempt, 2) / name)
    assert firsts(run) == [1]


def test_none_is_whole(run):
    attempt = run.new_attempt()
    for first in (1, 2):
        flip(take(attempt, first) / "node-n1.h5", 3000)
    with pytest.raises(SnapshotError, match=r"has no whole snapshot: .*00000002.*00000001"):
        newest_snapshot(run)


def rewrite(folder: Path, **changes: object) -> None:
    record = json.loads((folder / "manifest.json").read_text()) | changes
    del record["digest"]
    record["digest"] = digest_bytes(json.dumps(record, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run_id": "another"}, r"manifest\.json is of run 'another', not of '2"),
        ({"layout": 2, "streams": [1]}, r"manifest\.json has layout 2, this hpcrl reads 1"),
    ],
)
def test_what_must_not_be_passed_over(run, changes, text):
    attempt = run.new_attempt()
    take(attempt, 1)
    rewrite(take(attempt, 2), **changes)
    with pytest.raises(SnapshotError, match=text):
        newest_snapshot(run)


def test_a_manifest_of_the_wrong_kind_is_damaged(run):
    attempt = run.new_attempt()
    take(attempt, 1)
    rewrite(take(attempt, 2), policy_version="three")
    assert firsts(run) == [1]


def test_checksums_without_xxhash(run, monkeypatch):
    attempt = run.new_attempt()
    take(attempt, 1)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert digest_bytes(b"x").startswith("blake2b:")
    with pytest.raises(SnapshotError, match="need the package xxhash"):
        newest_snapshot(run)
    monkeypatch.undo()
    assert firsts(run) == [1]
    monkeypatch.setitem(sys.modules, "xxhash", None)
    take(attempt, 2)
    monkeypatch.undo()
    assert firsts(run) == [2]


def test_retention_over_attempts(run):
    first = run.new_attempt()
    one, two = take(first, 1), take(first, 2)
    unfinished = snapshot_folder(first, 3)
    unfinished.mkdir()
    assert retain(run) == []
    assert committed(run) == [two, one]
    assert unfinished.exists()
    second = run.new_attempt()
    three = take(second, 3)
    begun = snapshot_folder(second, 2)
    begun.mkdir()
    assert retain(run) == []
    assert committed(run) == [three, two]
    assert not one.exists()
    assert not unfinished.exists()
    assert begun.exists()
    assert retain(run, keep=1) == []
    assert committed(run) == [three]
    with pytest.raises(ValueError, match="at least the newest"):
        retain(run, keep=0)


def test_what_cannot_be_removed_is_told_and_tried_again(run):
    attempt = run.new_attempt()
    one, two = take(attempt, 1), take(attempt, 2)
    with armed("disk.unlink~.00000001.old=errno:EACCES"):
        (problem,) = retain(run, keep=1)
        assert ".00000001.old" in problem or str(one) in problem
    assert committed(run) == [two]
    assert retain(run, keep=1) == []
    assert [path.name for path in one.parent.iterdir()] == ["00000002"]


def test_columns_of_a_block_on_different_nodes_come_together(run):
    attempt = run.new_attempt()
    there = [block(0), block(10, reward=False), block(20, reward=False), block(30, reward=False)]
    here = [block(30, tokens=False), block(10, tokens=False), block(40)]
    files = [write_node(attempt, 1, node, [STREAM], blocks, policy_version=0) for node, blocks in (("a", there), ("b", here))]
    commit(attempt, 1, files, policy_version=0, ledger_seq=0, visible_s=0)
    snapshot = newest_snapshot(run)
    assert snapshot is not None
    with snapshot.open() as merged:
        got = {b.first: b for b in merged.blocks("s")}
        infos = {info.first: info for info in merged.infos()}
        some = [b.first for b in merged.blocks("s", only={40, 10})]
    assert list(got) == [0, 10, 20, 30, 40]
    assert some == [10, 40]
    for first, one in got.items():
        whole = block(first, reward=first != 20)
        assert one.labels == whole.labels == infos[first].labels
        assert {n: d.tobytes() for n, d in one.columns.items()} == {n: d.tobytes() for n, d in whole.columns.items()}
        assert infos[first].columns == one.columns.keys()


@pytest.mark.parametrize(
    ("other", "blocks", "text"),
    [
        (
            Stream(name="s", columns=(TOKENS, REWARD)),
            [block(0, rows=3)],
            r"node-b\.h5: block 0 of stream 's' has 3 rows here and 2",
        ),
        (Stream(name="s", columns=(REWARD,)), [], r"node-b\.h5: stream 's' has other columns than in .*node-a\.h5"),
    ],
)
def test_files_that_do_not_fit_together(run, other, blocks, text):
    attempt = run.new_attempt()
    files = [
        write_node(attempt, 1, "a", [STREAM], [block(0)], policy_version=0),
        write_node(attempt, 1, "b", [other], blocks, policy_version=0),
    ]
    commit(attempt, 1, files, policy_version=0, ledger_seq=0, visible_s=0)
    snapshot = newest_snapshot(run)
    assert snapshot is not None
    with pytest.raises(SnapshotError, match=text), snapshot.open():
        pass


def test_a_schema_that_differs_names_the_column_and_both_types(run):
    take(run.new_attempt(), 1)
    snapshot = newest_snapshot(run)
    assert snapshot is not None
    with snapshot.open() as merged:
        check_schema(merged.columns, [STREAM], snapshot.folder)
        changed = Stream(
            name="s", columns=(Column(name="tokens", dtype="int64", ragged=True), Column(name="score", dtype="str"))
        )
        with pytest.raises(SnapshotError) as error:
            check_schema(merged.columns, [changed, Stream(name="t", columns=(REWARD,))], snapshot.folder)
    text = str(error.value)
    assert str(snapshot.folder) in text
    assert "column 'tokens' is a list of 1-D int32 arrays, one a row in the snapshot and a list of 1-D int64 arrays" in text
    assert "column 'reward' is a 1-D float32 array, one value a row in the snapshot and not there in the recipe" in text
    assert "column 'score' is not there in the snapshot and a list of str" in text
    assert "stream 't' is not there in the snapshot and there in the recipe" in text


def test_a_write_that_fails_leaves_the_one_before(run):
    attempt = run.new_attempt()
    take(attempt, 1)

    def failing():
        yield block(5)
        raise SnapshotError("no more")

    with pytest.raises(SnapshotError, match="no more"):
        write_node(attempt, 2, "n1", [STREAM], failing(), policy_version=0)
    assert firsts(run) == [1]
    (attempt.path / "snapshots" / "00000003").write_text("in the way")
    with pytest.raises(SnapshotError, match=r"00000003/node-n1\.h5 cannot be written"):
        write_node(attempt, 3, "n1", [STREAM], [], policy_version=0)


def test_counts_are_those_of_all_nodes(run):
    folder = take(run.new_attempt(), 0, 10, 20, nodes=("a", "b"))
    size = sum(data.nbytes for first in (0, 10, 20) for data in block(first).columns.values())
    assert read_manifest(folder, run.run_id).streams == {"s": Counts(6, 3, size)}
