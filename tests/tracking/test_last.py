from __future__ import annotations

from pathlib import Path

from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.journal import Journal
from hpcrl.tracking.last import TAIL_BYTES, last_step


def test_the_last_step_of_the_newest_attempt_that_has_one(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", name="x", recipe_json="{}")
    assert last_step(run) is None
    first = run.new_attempt()
    journal = Journal(first.journal / "trainer.0.jsonl")
    for step in range(1, 200):
        journal.write("step", step=step, reward=step / 200, padding="x" * 1000)
    assert (first.journal / "trainer.0.jsonl").stat().st_size > 2 * TAIL_BYTES
    Journal(first.journal / "rollout.0.jsonl").write("phase", name='"kind":"step"')
    run.new_attempt()
    found = last_step(run)
    assert found is not None
    assert (found["step"], found["reward"]) == (199, 0.995)
    with open(first.journal / "trainer.0.jsonl", "a") as file:
        file.write('{"t":1,"kind":"step","step":2')
    found = last_step(run)
    assert found is not None
    assert found["step"] == 199
