import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.tracking.mlflow_feed import MlflowFeed, quiet_mlflow, without_password
from hpcrl.tracking.mlflow_store import database_file, default_uri

pytestmark = pytest.mark.slow

quiet_mlflow()

SYNC = """
import sys
from pathlib import Path
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.mlflow_feed import MlflowFeed, quiet_mlflow
quiet_mlflow()
import mlflow
print("ready", flush=True)
sys.stdin.readline()
feed = MlflowFeed(RunDirectory.open(Path(sys.argv[1])), sys.argv[2])
feed.sync(last=True)
print(feed.mlflow_run)
"""


@pytest.fixture
def fed(trained: RunDirectory, empty_database: Path) -> RunDirectory:
    (trained.path / "mlflow.db").write_bytes(empty_database.read_bytes())
    return trained


def client(uri: str):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def rows(run: RunDirectory) -> list[tuple]:
    with sqlite3.connect(run.path / "mlflow.db") as database:
        return sorted(database.execute("select key, step, timestamp, value from metrics").fetchall())


def test_a_run_is_in_mlflow_as_in_its_journal(fed: RunDirectory) -> None:
    feed = MlflowFeed(fed)
    assert feed.sync(last=True) > 6 * 20
    held = client(default_uri(fed)).get_run(feed.mlflow_run)
    reward = client(default_uri(fed)).get_metric_history(feed.mlflow_run, "train/reward")
    assert [metric.step for metric in reward] == [1, 2, 3, 4, 5, 6]
    assert reward[2].timestamp == round((1_700_000_000.0 + 30 + 1000) * 1000)
    assert held.data.metrics["outcomes/wrong"] == pytest.approx(6 / 12)
    assert held.data.metrics["weights/load_s"] == 0.2
    assert held.data.params["schedule.steps"] == "6"
    assert len(held.data.params["groups.trainer.note"]) == 6000
    assert held.data.tags["run_id"] == fed.run_id
    assert held.data.tags["attempt"] == "1"
    assert held.info.artifact_uri.startswith((fed.path / "mlflow-artifacts").as_uri())


def test_what_a_run_goes_on_with_otherwise_is_in_tags(fed: RunDirectory) -> None:
    MlflowFeed(fed).sync(last=True)
    recipe = json.loads((fed.path / "recipe.json").read_text())
    recipe["schedule"]["steps"] = 9
    (fed.path / "recipe.json").write_text(json.dumps(recipe))
    again = MlflowFeed(fed)
    again.sync(last=True)
    data = client(default_uri(fed)).get_run(again.mlflow_run).data
    assert data.params["schedule.steps"] == "6"
    assert {name: text for name, text in data.tags.items() if name.startswith("changed.")} == {"changed.schedule.steps": "9"}
    recipe["schedule"]["steps"] = 6
    (fed.path / "recipe.json").write_text(json.dumps(recipe))
    MlflowFeed(fed).sync(last=True)
    assert client(default_uri(fed)).get_run(again.mlflow_run).data.tags["changed.schedule.steps"] == "6", "as it was again"


def test_feeding_again_adds_nothing(fed: RunDirectory) -> None:
    first = MlflowFeed(fed)
    first.sync(last=True)
    before = rows(fed)
    assert first.sync(last=True) == 0
    again = MlflowFeed(fed)
    assert again.sync(last=True) == 0
    assert again.mlflow_run == first.mlflow_run
    assert rows(fed) == before


def test_a_crash_between_mlflow_and_the_cursor_adds_nothing(fed: RunDirectory) -> None:
    feed = MlflowFeed(fed)
    feed.sync(last=True)
    before = rows(fed)
    (fed.path / "mlflow.json").unlink()
    again = MlflowFeed(fed)
    assert again.sync(last=True) > 0
    assert again.mlflow_run == feed.mlflow_run
    assert rows(fed) == before


def test_a_lost_database_is_filled_again(fed: RunDirectory, empty_database: Path) -> None:
    MlflowFeed(fed).sync(last=True)
    before = rows(fed)
    (fed.path / "mlflow.db").write_bytes(empty_database.read_bytes())
    MlflowFeed(fed).sync(last=True)
    assert rows(fed) == before


def test_a_step_is_logged_when_it_is_there_and_its_outcomes_one_step_later(
    fed: RunDirectory, record_step: Callable[..., None]
) -> None:
    feed = MlflowFeed(fed)
    feed.sync()
    steps = {key: {row[1] for row in rows(fed) if row[0] == key} for key in ("train/loss", "outcomes/right")}
    assert steps == {"train/loss": {1, 2, 3, 4, 5, 6}, "outcomes/right": {1, 2, 3, 4, 5}}
    record_step(fed.latest(), 7)
    feed.sync()
    steps = {key: {row[1] for row in rows(fed) if row[0] == key} for key in ("train/loss", "outcomes/right")}
    assert steps == {"train/loss": {1, 2, 3, 4, 5, 6, 7}, "outcomes/right": {1, 2, 3, 4, 5, 6}}


def test_a_later_attempt_goes_on_in_the_same_mlflow_run(fed: RunDirectory, record_step: Callable[..., None]) -> None:
    feed = MlflowFeed(fed)
    feed.sync(last=True)
    write_done(fed.latest(), DoneRecord(process="trainer.0", status="failed", code=3))
    feed.finish()
    server = client(default_uri(fed))
    assert server.get_run(feed.mlflow_run).info.status == "FAILED"
    record_step(fed.new_attempt(), 7)
    later = MlflowFeed(fed)
    later.sync(last=True)
    held = server.get_run(later.mlflow_run)
    assert later.mlflow_run == feed.mlflow_run
    assert held.data.tags["attempt"] == "2"
    assert held.info.status == "RUNNING"
    assert held.data.metrics["train/version"] == 7


def test_the_end_has_the_report_and_the_state(fed: RunDirectory) -> None:
    (fed.path / "report.html").write_text("<p>report</p>")
    (fed.path / "curves.png").write_bytes(b"png")
    for process in ("trainer.0", "rollout.0", "reward.0", "reward.1", "inference.0"):
        write_done(fed.latest(), DoneRecord(process=process, status="done"))
    feed = MlflowFeed(fed)
    feed.sync(last=True)
    feed.finish()
    held = client(default_uri(fed)).get_run(feed.mlflow_run)
    assert held.info.status == "FINISHED"
    assert {item.path for item in client(default_uri(fed)).list_artifacts(feed.mlflow_run)} == {"report.html", "curves.png"}
    assert (fed.path / "mlflow-artifacts").is_dir()


def test_many_steps_are_sent_in_whole_batches(fed: RunDirectory, record_step: Callable[..., None]) -> None:
    attempt = fed.new_attempt()
    for step in range(7, 107):
        record_step(attempt, step)
    feed = MlflowFeed(fed)
    feed.sync(last=True)
    assert len([row for row in rows(fed) if row[0] == "train/loss"]) == 106


def test_two_runs_make_one_database_at_the_same_time(tmp_path: Path, record_step: Callable[..., None]) -> None:
    uri = f"sqlite:///{tmp_path / 'shared' / 'all.db'}"
    feeds = []
    for name in ("a", "b"):
        run = RunDirectory.create(tmp_path / name, name="tiny", recipe_json=json.dumps({"name": "tiny"}))
        record_step(run.new_attempt(), 1)
        feeds.append(
            subprocess.Popen(
                [sys.executable, "-c", SYNC, str(run.path), uri],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for feed in feeds:
        assert feed.stdout.readline() == "ready\n"
    ends = [feed.communicate("go\n", timeout=120) for feed in feeds]
    assert [feed.returncode for feed in feeds] == [0, 0], ends
    assert [error for _, error in ends] == ["", ""]
    ids = [output.strip() for output, _ in ends]
    assert len(set(ids)) == 2
    for run_id in ids:
        assert client(uri).get_run(run_id).data.metrics["train/version"] == 1


def test_uris(run: RunDirectory, tmp_path: Path) -> None:
    assert database_file(f"sqlite:///{tmp_path}/a.db") == tmp_path / "a.db"
    assert database_file("http://host:5000") is None
    assert database_file("sqlite://") is None
    assert without_password("https://me:secret@host:5000/x") == "https://***@host:5000/x"
    assert without_password(default_uri(run)) == default_uri(run)
