from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import CAUSED_S, DoneRecord, DoneRecords, first_failure, write_done


def test_records_come_back_and_the_earliest_failure_is_the_one_named(tmp_path: Path):
    attempt = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}").new_attempt()
    records = DoneRecords(attempt)
    assert records.read() == {}
    assert records.first_failure() is None
    late = DoneRecord(process="b.1", status="failed", code=2, error="follows", t=20.0)
    early = DoneRecord(process="a.0", status="failed", code=9, error="cause", t=10.0)
    for record in (late, early, DoneRecord(process="c.0", status="done")):
        write_done(attempt, record)
    assert records.read()["b.1"] == late
    assert records.first_failure() == early


def test_a_death_just_after_the_first_failure_is_taken_for_its_cause():
    peer = DoneRecord(process="t.1", status="failed", code=1, error="connection reset", t=10.0)
    killed = DoneRecord(process="t.0", status="failed", code=137, killed_by="SIGKILL", t=10.4)
    assert first_failure([peer, killed]) == killed
    assert first_failure([peer, replace(killed, t=10.0 + CAUSED_S)]) == peer
    assert first_failure([peer, replace(killed, killed_by="")]) == peer, "its ignitor killed it, for it was late"
