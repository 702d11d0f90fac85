from __future__ import annotations

import json
from pathlib import Path

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.run.directory import RunDirectory
from hpcrl.supervise.progress import begin, committed_steps
from hpcrl.supervise.verdict import is_stuck


def save(run: RunDirectory, step: int) -> None:
    cursor = Cursor(step=step, prompts=4 * step)
    saved = Manifest(run_id=run.run_id, attempt=1, step=step, number=1, cursor=cursor.to_record())
    (run.state / str(saved.name)).mkdir()
    write_manifest(run.state, saved)


def test_steps_count_from_where_a_person_last_resumed(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    (run.path / "slurm").mkdir()
    begin(run.new_attempt(), "1")
    save(run, 7)
    begin(run.new_attempt(), "1")
    run.new_attempt()  # on a machine without Slurm
    begin(run.new_attempt(), "2")
    assert committed_steps(run) == [0, 7, 7]
    jobs = [{"job": "1", "t": 1.0, "why": "submit"}, {"job": "2", "t": 2.0, "why": "resume"}]
    (run.path / "slurm" / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    assert committed_steps(run) == [7]
    begin(run.new_attempt(), "2")
    assert committed_steps(run) == [7, 7]


def test_twenty_preemptions_with_progress_go_on_and_three_without_do_not(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    for attempt in range(20):
        assert not is_stuck(committed_steps(run), attempt)
        begin(run.new_attempt(), "1")
        save(run, attempt + 1)
    assert not is_stuck(committed_steps(run), 20)
    for _ in range(3):
        assert not is_stuck(committed_steps(run), 20)
        begin(run.new_attempt(), "1")
    assert is_stuck(committed_steps(run), 20)
