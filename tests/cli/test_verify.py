import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.cli.evidence import limits_of
from hpcrl.cli.main import COMMANDS
from hpcrl.cli.verify import command
from hpcrl.config.codec import recipe_to_json
from hpcrl.dataplane.history.writer import HistoryWriter
from hpcrl.recipe import Limits, Recipe, Schedule, Stream
from hpcrl.roles.samples import samples_stream
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.testing.ledger_run import STREAM, LedgerRun, Left, Shape
from hpcrl.tracking.journal import Journal

SHAPE = Shape(steps=9, attempts=2)
RECIPE = {
    "schedule": {"steps": SHAPE.steps, "prompts_per_step": 3, "samples_per_prompt": SHAPE.samples, "window": SHAPE.window},
    "limits": {"version_lag": SHAPE.lag},
    "streams": [{"name": STREAM, "prompt": "prompt_number"}, {"name": "other", "prompt": ""}],
}


def make_run(path: Path, left: Left, *, ended: bool = True) -> RunDirectory:
    """A run's directory as a run with that history leaves it."""
    run = RunDirectory.create(path, name="tiny", recipe_json=json.dumps(RECIPE))
    for number in sorted({number for number, _, _ in left.events}):
        attempt = run.new_attempt()
        writer = HistoryWriter(attempt.path / "history")
        for _, event_number, event in (item for item in left.events if item[0] == number):
            writer.append(event_number, [event])
        writer.close()
        attempt.log("trainer.0").write_text("")
        if ended:
            write_done(attempt, DoneRecord(process="trainer.0", status="done"))
    journal = Journal(run.latest().journal / "trainer.0.jsonl")
    for step, prompts in left.steps.items():
        journal.write("step", step=step, prompts=prompts)
    journal.close()
    if left.cursor is not None:
        save(run, left.cursor)
    return run


def save(run: RunDirectory, cursor: Cursor, number: int = 1) -> None:
    saved = Manifest(run_id=run.run_id, attempt=1, step=cursor.step, number=number, cursor=cursor.to_record())
    (run.state / str(saved.name)).mkdir()
    write_manifest(run.state, saved)


@pytest.fixture
def left() -> Left:
    return LedgerRun(5, SHAPE).run()


def invoke(path: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(path), *options])


def test_a_clean_run(tmp_path, left):
    make_run(tmp_path / "tiny", left)
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 0, result.output
    head, counts, figures, _, *rules = result.output.splitlines()
    assert head.startswith("tiny  run ")
    assert re.fullmatch(r"\d+ rows in 2 attempts, \d+ events, [\d.]+ bytes a row", counts)
    assert figures.startswith(f"stream {STREAM}: ")
    assert "108 trained for good" in figures
    assert [line.split()[:2] for line in rules] == [
        ["ok", name]
        for name in "ids lives leases held filled once prompts lost commits versions lag pacing".split()  # noqa: SIM905
    ]
    assert "(9 steps)" in rules[8]
    assert "\x1b" not in result.output


def test_json(tmp_path, left):
    run = make_run(tmp_path / "tiny", left)
    value = json.loads(invoke(tmp_path / "tiny", "--json").output)
    assert (value["run_id"], value["clean"], value["live"], value["missing"]) == (run.run_id, True, False, [])
    assert value["events"] == len(left.events)
    assert value["streams"][STREAM]["steps"] == 9
    assert value["bytes"] == sum(path.stat().st_size for path in (tmp_path / "tiny").glob("attempt_*/history/*"))


def test_a_violation_names_row_prompt_step_and_the_log_to_read(tmp_path, left):
    index = max(i for i, (_, _, event) in enumerate(left.events) if event.kind == "trained" and event.who == "trainer.0")
    attempt, number, event = left.events[index]
    left.events.insert(index, left.events[index])
    left.events[index + 1 :] = [(a, n + (a == attempt), e) for a, n, e in left.events[index + 1 :]]
    make_run(tmp_path / "tiny", left)
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 1
    assert re.search(r"^FAIL  once .*\(1 violations, \d+ rows\)$", result.output, re.MULTILINE)
    row = event.blocks[0][0]
    assert re.search(
        rf"once: stream 'samples', row {row} \(attempt \d, process \d.*\), prompt \d+, step 9: trained again by trainer.0",
        result.output,
    )
    assert f"[attempt_2/history, event {number + 1}]" in result.output
    assert f"read {tmp_path}/tiny/attempt_2/logs/trainer.0.log" in result.output


def test_what_was_left_with_an_earlier_attempt_counts_in_a_save(tmp_path, left):
    assert left.cursor is not None
    run = make_run(tmp_path / "tiny", left)
    save(run, replace(left.cursor, prompts=left.cursor.prompts + 1), number=2)
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 1
    assert f"prompt {left.cursor.prompts}: the save of step 9 (state/step-00000009.a1.2/manifest.json)" in result.output


def test_a_history_with_a_gap_proves_nothing(tmp_path, left):
    run = make_run(tmp_path / "tiny", left)
    (run.attempts()[0].path / "history" / "00001.events.gz").write_bytes(b"")
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 2
    assert "the history is not complete" in result.output


def test_a_history_whose_middle_is_gone_says_which_events(tmp_path, left):
    run = make_run(tmp_path / "tiny", left)
    folder = run.attempts()[0].path / "history"
    (folder / "00001.events.gz").unlink()
    writer = HistoryWriter(folder)
    writer.append(3, [event for number, _, event in left.events if number == 1][3:])
    writer.close()
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 2
    assert "events 0 to 2 are not there" in result.output


def test_a_live_run_is_checked_as_far_as_it_is(tmp_path, left):
    left.events = left.events[: 3 * len(left.events) // 4]
    left.cursor, left.steps = None, {}
    make_run(tmp_path / "tiny", left, ended=False)
    result = invoke(tmp_path / "tiny")
    assert result.exit_code == 0, result.output
    assert "the run may be going on" in result.output


def test_runs_without_a_history_are_told_apart(tmp_path):
    run = RunDirectory.create(tmp_path / "old", name="old", recipe_json=json.dumps(RECIPE))
    attempt = run.new_attempt()
    with pytest.raises(CheckFailed, match="has no history of its rows"):
        CliRunner().invoke(command, [str(run.path)], catch_exceptions=False)
    (attempt.path / "history").mkdir()
    with pytest.raises(CheckFailed, match="still empty"):
        CliRunner().invoke(command, [str(run.path)], catch_exceptions=False)


def test_limits_are_read_from_a_resolved_recipe():
    schedule = Schedule(steps=4, prompts_per_step=8, samples_per_prompt=4, window=2)
    streams = (samples_stream(samples_per_prompt=4), Stream(name="other", columns=()))
    recipe = Recipe(name="tiny", groups={}, streams=streams, schedule=schedule, limits=Limits(version_lag=3))
    limits = limits_of(json.loads(recipe_to_json(recipe)))
    assert list(limits) == ["samples"]
    found = limits["samples"]
    assert (found.samples, found.version_lag) == (4, 3)
    assert found.needed is not None
    assert [found.needed(prompt) for prompt in (0, 15, 16, 23, 24)] == [0, 0, 1, 1, 2]


def test_it_is_a_command():
    assert COMMANDS["verify"][0] == "hpcrl.cli.verify"
