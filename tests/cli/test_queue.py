import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpcrl.cli import queue as queue_module
from hpcrl.cli.main import cli
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.layout import SavedBlock
from hpcrl.dataplane.snapshot.manifest import commit, next_number, snapshot_folder, write_node
from hpcrl.dataplane.snapshot.rows import open_rows
from hpcrl.recipe import Column, Stream
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed

TOKENS = Column(name="tokens", dtype="int32", ragged=True)
LOGPROBS = Column(name="logprobs", dtype="float32", ragged=True)
REWARD = Column(name="reward", dtype="float32")
DONE = Column(name="done", dtype="bool")
TEXT = Column(name="text", dtype="str")
SAMPLES = Stream(name="samples", columns=(TOKENS, LOGPROBS, REWARD, DONE, TEXT))
OTHER = Stream(name="other", columns=(TEXT,))


def sample(first: int, *, graded: bool = True) -> SavedBlock:
    ids = np.arange(first, first + 2)
    columns = {
        "tokens": pack("samples", TOKENS, ids, [np.array([first, 7], np.int32), np.zeros(0, np.int32)]),
        "logprobs": pack("samples", LOGPROBS, ids, [np.array([-0.5, np.nan], np.float32), np.zeros(0, np.float32)]),
        "text": pack("samples", TEXT, ids, ["a\ud800 \n", ""]),
    }
    if graded:
        columns["reward"] = pack("samples", REWARD, ids, np.array([0.25, np.inf], np.float32))
        columns["done"] = pack("samples", DONE, ids, np.array([True, False]))
    return SavedBlock("samples", first, 2, columns, Labels(prompts=[first, first], tokens=[2, 0]))


def text(first: int) -> SavedBlock:
    return SavedBlock("other", first, 1, {"text": pack("other", TEXT, np.array([first]), ["x"])})


def take(attempt: Attempt, *nodes: list[SavedBlock]) -> Path:
    number = next_number(attempt)
    files = [write_node(attempt, number, f"n{k}", [SAMPLES, OTHER], blocks, policy_version=4) for k, blocks in enumerate(nodes)]
    commit(attempt, number, files, policy_version=4, ledger_seq=1, visible_s=0)
    return snapshot_folder(attempt, number)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "tiny", name="tiny", recipe_json="{}")
    monkeypatch.chdir(tmp_path)
    attempt = run.new_attempt()
    take(attempt, [sample(900)])
    take(attempt, [sample(10), text(50)], [sample(20, graded=False)])
    return run


def export(run: RunDirectory, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["queue", "export", str(run.path), *arguments])


def firsts(path: Path, stream: str = "samples") -> list[int]:
    with open_rows(path) as rows:
        return [block.first for block in rows.tables[stream].blocks()]


def test_one_hdf5_file_of_all_nodes(run: RunDirectory, tmp_path: Path) -> None:
    done = export(run)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("tiny-queue.h5: 5 rows, ")
    assert "of snapshot 2 of attempt 1, policy version 4" in done.stdout
    assert done.stderr == ""
    with open_rows(tmp_path / "tiny-queue.h5") as rows:
        assert list(rows.tables) == ["other", "samples"]
        assert {name: rows.about[name] for name in ("run_id", "attempt", "number")} == {
            "run_id": run.run_id,
            "attempt": 1,
            "number": 2,
        }
        for got, want in zip(rows.tables["samples"].blocks(), [sample(10), sample(20, graded=False)], strict=True):
            assert got.labels == want.labels
            assert {n: d.tobytes() for n, d in got.columns.items()} == {n: d.tobytes() for n, d in want.columns.items()}


def test_json_lines(run: RunDirectory, tmp_path: Path) -> None:
    assert export(run, "--out", "rows.jsonl").exit_code == 0
    lines = (tmp_path / "rows.jsonl").read_text(encoding="ascii").splitlines()
    records = [json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")) for line in lines]
    assert {record["row"] for record in records} == {10, 11, 20, 21, 50}
    by_row = {record["row"]: record for record in records}
    assert by_row[10] == {
        "stream": "samples",
        "row": 10,
        "labels": {"prompts": 10, "tokens": 2},
        "columns": {"tokens": [10, 7], "logprobs": [-0.5, "nan"], "reward": 0.25, "done": True, "text": "a\ud800 \n"},
    }
    assert math.isinf(float(by_row[11]["columns"]["reward"]))
    assert by_row[21]["columns"] == {"tokens": [], "logprobs": [], "text": ""}
    assert by_row[50] == {"stream": "other", "row": 50, "labels": {}, "columns": {"text": "x"}}


def test_one_stream(run: RunDirectory, tmp_path: Path) -> None:
    assert export(run, "--stream", "other", "--out", "o.h5").stdout.startswith("o.h5: 1 rows")
    with open_rows(tmp_path / "o.h5") as rows:
        assert list(rows.tables) == ["other"]
    failed = export(run, "--stream", "sample", "--out", "s.h5")
    assert isinstance(failed.exception, CheckFailed)
    assert "has no stream 'sample'; nearest: samples" in str(failed.exception)
    assert not (tmp_path / "s.h5").exists()


def test_of_an_attempt(run: RunDirectory, tmp_path: Path) -> None:
    take(run.new_attempt(), [sample(30)])
    run.new_attempt()
    assert export(run, "--out", "new.h5").exit_code == 0
    assert firsts(tmp_path / "new.h5") == [30]
    assert export(run, "--out", "old.h5", "--attempt", "1").exit_code == 0
    assert firsts(tmp_path / "old.h5") == [10, 20]
    assert "attempt 3 of run" in str(export(run, "--out", "no.h5", "--attempt", "3").exception)
    assert "has no attempt 4; it has: 1, 2, 3" in str(export(run, "--out", "no.h5", "--attempt", "4").exception)


def test_a_file_is_replaced_only_by_force(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "rows.h5").write_text("mine")
    error = export(run, "--out", "rows.h5").exception
    assert isinstance(error, CheckFailed)
    assert "rows.h5 is there already" in str(error)
    assert (tmp_path / "rows.h5").read_text() == "mine"
    assert export(run, "--out", "rows.h5", "--force").exit_code == 0
    assert firsts(tmp_path / "rows.h5") == [10, 20]


def test_bad_names_are_told_at_once(run: RunDirectory, tmp_path: Path) -> None:
    error = export(run, "--out", "gone/rows.csv").exception
    assert isinstance(error, CheckFailed)
    assert len(error.problems) == 2
    assert "must end in .h5, .hdf5, .jsonl" in str(error)
    assert "there is no folder gone" in str(error)
    (tmp_path / "folder.h5").mkdir()
    assert "folder.h5 is a folder" in str(export(run, "--out", "folder.h5", "--force").exception)
    assert "--compress is for HDF5" in str(export(run, "--out", "a.jsonl", "--compress").exception)


def test_no_snapshot(tmp_path: Path) -> None:
    bare = RunDirectory.create(tmp_path / "bare", name="bare", recipe_json="{}")
    error = export(bare, "--out", str(tmp_path / "x.h5")).exception
    assert isinstance(error, CheckFailed)
    assert f"run {bare.path} has no snapshot of its queue" in str(error)


def test_a_damaged_snapshot_is_passed_over_aloud(run: RunDirectory, tmp_path: Path) -> None:
    damaged = run.path / "attempt_1" / "snapshots" / "00000002" / "node-n1.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = export(run)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"hpcrl: {damaged} is damaged: it has ")
    assert "00000001 instead" in done.stderr
    assert firsts(tmp_path / "tiny-queue.h5") == [900]


def test_compressed_is_the_same_and_smaller(run: RunDirectory, tmp_path: Path) -> None:
    take(run.latest(), [sample(k) for k in range(0, 4000, 10)])
    assert export(run, "--out", "plain.h5").exit_code == 0
    assert export(run, "--out", "small.h5", "--compress").exit_code == 0
    assert firsts(tmp_path / "small.h5") == firsts(tmp_path / "plain.h5") == list(range(0, 4000, 10))
    assert (tmp_path / "small.h5").stat().st_size < (tmp_path / "plain.h5").stat().st_size


def test_progress_of_a_large_one_on_standard_error(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "SHOW_PROGRESS", 0)
    done = export(run)
    assert "rows" in done.stderr
    assert done.stdout.count("\n") == 1


def test_exit_codes_as_of_every_command(run: RunDirectory, tmp_path: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpcrl.cli.main", "queue", "export", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    missing = call(str(tmp_path / "nowhere"))
    assert missing.returncode == 2
    assert missing.stderr.startswith("hpcrl: 1 problem")
    for path in (run.path / "attempt_1" / "snapshots").glob("*/node-n0.h5"):
        path.write_bytes(b"")
    broken = call(str(run.path))
    assert broken.returncode == 1
    assert "has no whole snapshot" in broken.stderr
    assert "Traceback" not in broken.stderr
