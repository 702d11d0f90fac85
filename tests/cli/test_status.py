import json
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.main import cli
from hpcrl.cli.status import render
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.tracking.journal import Journal
from hpcrl.tracking.overview import Watcher

RECIPE = {"name": "tiny", "schedule": {"steps": 3}, "groups": {"rollout": {}, "reward": {}, "trainer": {}}}


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    run = RunDirectory.create(tmp_path / "run", name="tiny", recipe_json=json.dumps(RECIPE))
    attempt = run.new_attempt()
    for name, phase, step in (("rollout.0", "generate", 3), ("rollout.1", "wait", 3), ("trainer.0", "step", 2)):
        Journal(attempt.journal / f"{name}.jsonl").write("phase", name=phase, step=step)
        attempt.log(name).write_text("hello\n")
    attempt.log("ignitor.0").write_text("ignitor\n")
    Journal(attempt.journal / "trainer.0.jsonl").write("step", step=2, reward=0.25, step_s=1.5)
    return attempt


def invoke(attempt: Attempt, *options: str):
    return CliRunner().invoke(cli, ["status", str(attempt.run.path), *options])


def test_a_running_run(attempt: Attempt) -> None:
    result = invoke(attempt)
    assert result.exit_code == 0
    head, last, _, *table = result.stdout.splitlines()
    assert head.split() == ["tiny", "run", attempt.run.run_id, "attempt", "1", "running"]
    assert last.startswith("step 2/3 reward 0.250 step_s 1.50  (")
    assert [line.split()[:2] for line in table] == [
        ["PROCESS", "STATE"],
        ["rollout.0", "running"],
        ["rollout.1", "running"],
        ["reward", "waiting"],
        ["trainer.0", "running"],
    ]
    assert "generate step 3" in table[1]
    assert table[1].rstrip().endswith("ago")
    assert "\x1b" not in result.stdout


def test_a_failure_says_what_and_which_file_to_read(attempt: Attempt) -> None:
    write_done(attempt, DoneRecord(process="rollout.1", status="failed", code=9, error="later", host="n2", t=20.0))
    write_done(
        attempt, DoneRecord(process="trainer.0", status="failed", code=7, error="loss is nan\nsee data", host="n1", t=10.0)
    )
    text = invoke(attempt).stdout
    assert "attempt 1  failed" in text
    assert "trainer.0 on n1 failed first, with code 7:\n  loss is nan\n  see data\n" in text
    assert f"read {attempt.log('trainer.0')}" in text
    assert "later" not in text


def test_a_run_in_one_process_has_one_log_to_read(attempt: Attempt) -> None:
    attempt.log("trainer.0").rename(attempt.log("in_process"))
    write_done(attempt, DoneRecord(process="trainer.0", status="failed", code=7, error="bad", host="n1"))
    assert f"read {attempt.log('in_process')}" in invoke(attempt).stdout


def test_json(attempt: Attempt) -> None:
    write_done(attempt, DoneRecord(process="trainer.0", status="failed", code=7, error="bad", host="n1"))
    found = json.loads(invoke(attempt, "--json").stdout)
    assert found["state"] == "failed"
    assert found["last"]["reward"] == 0.25
    assert found["total"] == 3
    assert found["failure"]["log"] == str(attempt.log("trainer.0"))
    by_name = {item["process"]: item for item in found["processes"]}
    assert by_name["rollout.0"]["phase"] == "generate"
    assert 0 <= by_name["rollout.0"]["age_s"] < 60
    assert by_name["reward"]["state"] == "waiting"


def end(attempt: Attempt, status: str) -> None:
    for name in ("rollout.0", "rollout.1", "trainer.0"):
        write_done(attempt, DoneRecord(process=name, status=status))


@pytest.mark.parametrize(
    ("status", "step", "state"), [("done", 3, "finished"), ("stopped", 2, "stopped"), ("stopped", 3, "finished")]
)
def test_how_a_run_ended(attempt: Attempt, status: str, step: int, state: str) -> None:
    Journal(attempt.journal / "trainer.0.jsonl").write("step", step=step)
    end(attempt, status)
    assert Watcher(attempt).look(time.time()).state == state


def test_an_earlier_attempt_is_shown_as_it_was(attempt: Attempt) -> None:
    write_done(attempt, DoneRecord(process="trainer.0", status="failed", code=7))
    later = attempt.run.new_attempt()
    Journal(later.journal / "trainer.0.jsonl").write("step", step=3, reward=0.75)
    assert "step 3/3 reward 0.750" in invoke(attempt).stdout
    earlier = invoke(attempt, "--attempt", "1").stdout
    assert "step 2/3" in earlier
    assert "failed" in earlier
    result = invoke(attempt, "--attempt", "5")
    assert isinstance(result.exception, CheckFailed)
    assert "it has: 1, 2" in str(result.exception)


def test_before_anything_happened(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="tiny", recipe_json=json.dumps(RECIPE))
    result = CliRunner().invoke(cli, ["status", str(run.path)])
    assert "no attempt yet" in str(result.exception)
    text = render(Watcher(run.new_attempt()).look(time.time()))
    assert "no step yet, 3 planned" in text
    assert text.count("waiting") == 3


@pytest.mark.slow
def test_watch_ends_with_the_run_and_shows_each_change_once(attempt: Attempt) -> None:
    timer = threading.Timer(
        0.3, lambda: (Journal(attempt.journal / "trainer.0.jsonl").write("step", step=3), end(attempt, "done"))
    )
    timer.start()
    result = invoke(attempt, "--watch", "--json")
    timer.join()
    views = [json.loads(line) for line in result.stdout.splitlines()]
    assert [views[0]["state"], views[-1]["state"]] == ["running", "finished"]


def test_heard_long_ago_and_now(attempt: Attempt) -> None:
    view = Watcher(attempt).look(time.time() + 7200)
    assert "2 h 00 m ago" in render(view)
