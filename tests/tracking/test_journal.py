import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.journal import Journal, JournalReader, RunJournalReader

WRITER = """
import sys
from pathlib import Path
from hpcrl.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]))
for n in range(500):
    journal.write("metrics", step=n, text="x" * (n % 300))
"""


def test_what_is_written_is_read_once_and_in_order(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path / "trainer.0.jsonl"), JournalReader(tmp_path)
    journal.write("step", step=1, reward=0.5)
    assert [(w, r["kind"], r["step"]) for w, r in reader.read()] == [("trainer.0", "step", 1)]
    journal.write("step", step=2)
    journal.write("step", step=3)
    assert [r["step"] for _, r in reader.read()] == [2, 3]
    assert list(reader.read()) == []


def test_numbers_of_any_kind_are_plain_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.0.jsonl")
    journal.write(
        "metrics",
        nan=float("nan"),
        infinite=[1.0, float("inf")],
        numpy_nan=np.float32("nan"),
        count=np.int64(3),
        array=np.array([1.0, np.nan]),
        nested={"x": float("-inf")},
    )
    text = (tmp_path / "a.0.jsonl").read_text()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record["nan"] is None
    assert record["infinite"] == [1.0, None]
    assert record["numpy_nan"] is None
    assert record["count"] == 3
    assert record["array"] == [1.0, None]
    assert record["nested"] == {"x": None}


def test_threads_never_mix_their_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.0.jsonl")

    def work(thread: int) -> None:
        for n in range(200):
            journal.write("metrics", thread=thread, n=n, text="y" * (n * 7 % 500))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = JournalReader(tmp_path)
    records = [record for _, record in reader.read()]
    assert reader.torn == 0
    assert sorted((r["thread"], r["n"]) for r in records) == [(t, n) for t in range(8) for n in range(200)]


def test_processes_with_a_journal_each_are_read_while_they_write(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / f"rollout.{n}.jsonl")]) for n in range(3)]
    reader, seen = JournalReader(tmp_path), {f"rollout.{n}": [] for n in range(3)}
    while any(writer.poll() is None for writer in writers):
        for name, record in reader.read():
            seen[name].append(record["step"])
    for name, record in reader.read():
        seen[name].append(record["step"])
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert all(steps == list(range(500)) for steps in seen.values())
    assert reader.torn == 0


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.0.jsonl"
    path.write_text('{"kind":"step","st')
    reader = JournalReader(tmp_path)
    assert list(reader.read()) == []
    with open(path, "a") as file:
        file.write('ep":1}\n')
    assert [r["step"] for _, r in reader.read()] == [1]


def test_a_crash_in_the_middle_of_a_line_spoils_only_that_line(tmp_path: Path) -> None:
    path = tmp_path / "a.0.jsonl"
    path.write_text('{"kind":"step","step":1}\n{"kind":"step","st')
    Journal(path).write("step", step=2)
    reader = JournalReader(tmp_path)
    assert [r["step"] for _, r in reader.read()] == [1, 2]
    assert reader.torn == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_counted_and_not_raised(tmp_path: Path) -> None:
    (tmp_path / "a.0.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path / "a.0.jsonl")
    journal.write("phase", name="step")
    journal.write("phase", name="step")
    assert journal.lost == 2
    journal.close()


def test_a_line_after_close_is_counted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.0.jsonl")
    journal.close()
    journal.write("phase", name="end")
    assert journal.lost == 1


def test_a_run_is_read_over_its_attempts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="r", recipe_json="{}")
    reader = RunJournalReader(run)
    assert list(reader.read()) == []
    Journal(run.new_attempt().journal / "trainer.0.jsonl").write("step", step=1)
    assert [(a, w, r["step"]) for a, w, r in reader.read()] == [(1, "trainer.0", 1)]
    Journal(run.new_attempt().journal / "trainer.0.jsonl").write("step", step=2)
    assert [(a, w, r["step"]) for a, w, r in reader.read()] == [(2, "trainer.0", 2)]
