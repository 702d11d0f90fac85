"""The leading trainer's bookkeeping of saves, with an engine and a queue that only note what they are told."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.identity import Identity
from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.state.manifest import QueueSnapshot
from hpcrl.checkpoint.state.saver import NotSaved, Saved
from hpcrl.dataplane.interface import Block
from hpcrl.roles import saving
from hpcrl.roles.saving import Saves
from hpcrl.run.directory import RunDirectory
from hpcrl.run.sealed import write_sealed


class FakeEngine:
    """Ends a save when it is told to."""

    def __init__(self):
        self.begun, self.ended, self.saving = [], None, False

    def begin_save(self, folder, about):
        self.begun.append(about)
        self.saving = True

    def poll_save(self):
        ended, self.ended = self.ended, None
        self.saving &= ended is None
        return ended

    def finish_save(self, *, seconds):
        return self.poll_save()


@pytest.fixture
def bench(tmp_path):
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    acknowledged, written, phases = [], [], []
    context = SimpleNamespace(
        recipe=SimpleNamespace(stream=lambda name: SimpleNamespace(capacity_rows=6)),
        attempt=run.new_attempt(),
        queue=SimpleNamespace(acknowledge=lambda batch: acknowledged.append(batch.row_ids.tolist())),
        journal=SimpleNamespace(write=lambda kind, **record: written.append((kind, record))),
        phase=lambda name, **_: phases.append(name),
    )
    engine = FakeEngine()
    saves = Saves(context, engine, Identity(model={"a": "b"}), step=-1)  # type: ignore[arg-type]
    return SimpleNamespace(run=run, saves=saves, engine=engine, acknowledged=acknowledged, written=written)


def block(*ids):
    return Block(np.array(ids, np.int64))


def saved(step):
    return Saved(name=SaveName(1, step, 1), path=Path("x"), bytes=1, seconds=1.0, stalled_s=0.0)


def test_rows_are_let_go_only_once_a_committed_save_holds_them(bench):
    saves, engine = bench.saves, bench.engine
    saves.trained([block(1, 2)], {"reward": 0.5, "loss": float("nan"), "note": "text"})
    saves.begin(Cursor(step=1, prompts=1))
    assert saves.under_way
    saves.trained([block(3)], {})
    saves.heed()
    assert bench.acknowledged == []
    engine.ended = saved(1)
    saves.heed()
    saves.heed()
    assert bench.acknowledged == [[1, 2]]
    assert saves.committed == 1
    saves.begin(Cursor(step=2, prompts=2))
    engine.ended = saved(2)
    assert saves.finish() == ""
    assert bench.acknowledged == [[1, 2], [3]]
    first = engine.begun[0]
    assert (first.run_id, first.attempt, first.cursor) == (bench.run.run_id, 1, Cursor(step=1, prompts=1))
    assert first.rows.tolist() == [1, 2]
    assert first.metrics == {"reward": 0.5}
    assert first.identity == Identity(model={"a": "b"})
    assert [kind for kind, _ in bench.written] == ["saved", "saved"]


def test_rows_of_a_save_that_failed_wait_for_the_next(bench, caplog):
    saves, engine = bench.saves, bench.engine
    saves.trained([block(1)], {})
    saves.begin(Cursor(step=1))
    saves.trained([block(2)], {})
    engine.ended = NotSaved(step=1, error="trainer rank 0 on n1: the disk is full")
    saves.heed()
    assert (bench.acknowledged, saves.committed) == ([], -1)
    assert "the disk is full; the save before it stays" in caplog.text
    assert bench.written == [("not_saved", {"step": 1, "error": "trainer rank 0 on n1: the disk is full"})]
    saves.begin(Cursor(step=2))
    assert engine.begun[-1].rows.tolist() == [1, 2]
    engine.ended = saved(2)
    saves.heed()
    assert bench.acknowledged == [[1, 2]]


def test_rows_that_take_all_the_room_ask_for_a_save_and_after_a_failure_not_at_once(bench, monkeypatch):
    saves, engine = bench.saves, bench.engine
    saves.trained([block(*range(5))], {})
    assert not saves.is_urgent
    saves.trained([block(5)], {})
    assert saves.is_urgent
    saves.begin(Cursor(step=1))
    assert not saves.is_urgent
    engine.ended = NotSaved(step=1, error="no")
    saves.heed()
    assert not saves.is_urgent
    monkeypatch.setattr(saving.time, "monotonic", lambda: 1e12)
    assert saves.is_urgent


def test_a_save_names_the_queues_snapshot_and_the_run_in_mlflow(bench):
    folder = bench.run.path / "attempt_1" / "snapshots" / "00000007"
    folder.mkdir(parents=True)
    (folder.parent / "00000008").mkdir()
    digest = write_sealed(folder / "manifest.json", {"layout": 1})
    (bench.run.path / "mlflow.json").write_text(json.dumps({"a": {"mlflow_run": "abc"}, "b": {"mlflow_run": ""}}))
    bench.saves.begin(Cursor(step=1))
    assert bench.engine.begun[0].queue == QueueSnapshot(1, 7, digest)
    assert bench.engine.begun[0].mlflow_run == "abc"
    (bench.run.path / "mlflow.json").write_text("[]")
    (folder / "manifest.json").write_text("{}")
    bench.saves.begin(Cursor(step=1))
    assert (bench.engine.begun[1].queue, bench.engine.begun[1].mlflow_run) == (None, "")
