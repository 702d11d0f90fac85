import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.dataplane.history.files import compress, numbered, raw_path
from hpcrl.dataplane.history.frames import MAGIC, FrameDecoder, FrameEncoder
from hpcrl.dataplane.history.reader import HistoryReader, following_number
from hpcrl.dataplane.history.writer import HistoryWriter
from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.rowids import RowIds, describe, origin

ROWS = st.integers(1, 9)
FIRSTS = st.builds(
    lambda prefix, count: prefix << 29 | count, st.sampled_from([0, 1 << 24, 7 << 30]), st.integers(0, (1 << 29) - 20)
)
NUMBERS = st.lists(st.integers(-1, 1 << 40), max_size=9)
EVENTS = st.builds(
    Event,
    st.sampled_from(["life", "produced", "filled", "leased", "trained", "cleared", "dropped"]),
    st.integers(0, 1 << 42).map(lambda ms: ms / 1000),
    st.sampled_from(["rollout.0", "trainer.1", ""]),
    st.integers(0, 1 << 18),
    st.sampled_from(["samples", ""]),
    st.lists(st.tuples(FIRSTS, ROWS), max_size=5),
    st.builds(Labels, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.integers(-1, 1 << 20),
    st.text(max_size=5),
)


def simple(count: int, start: int = 0) -> list[Event]:
    return [
        Event("leased", 1_700_000_000 + i / 8, "reward.0", 256, "samples", [(8 * i, 8)]) for i in range(start, start + count)
    ]


def read(folder: Path) -> tuple[list[tuple[int, Event]], HistoryReader]:
    reader = HistoryReader(folder)
    return list(reader.read()), reader


@settings(max_examples=40)
@given(st.lists(st.lists(EVENTS, min_size=1, max_size=6), max_size=4))
def test_frames_give_the_events_back(batches):
    encoder, decoder, number = FrameEncoder(), FrameDecoder(), 3
    for batch in batches:
        frame = encoder.encode(number, batch)
        assert decoder.decode(frame[8:]) == (number, batch)
        number += len(batch)


def test_blocks_that_follow_each_other_are_one_run():
    event = Event("leased", 1.0, "trainer.0", 256, "samples", [(8 * i, 8) for i in range(1000)])
    assert len(FrameEncoder().encode(0, [event])) < 80


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
def test_what_is_appended_is_read(tmp_path, delay_s):
    writer, events = HistoryWriter(tmp_path, delay_s=delay_s), simple(100)
    for i in range(0, 100, 10):
        writer.append(i, events[i : i + 10])
    writer.flush()
    assert writer.written == 100
    assert read(tmp_path)[0] == list(enumerate(events))
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["00001.events.gz"]
    found, reader = read(tmp_path)
    assert (found, reader.missing, reader.repeated) == (list(enumerate(events)), [], 0)
    assert reader.bytes == (tmp_path / "00001.events.gz").stat().st_size


def test_a_delayed_writer_writes_by_itself(tmp_path):
    writer = HistoryWriter(tmp_path, delay_s=0.01)
    writer.append(0, simple(1))
    deadline = threading.Event()
    for _ in range(1000):
        if writer.written:
            break
        deadline.wait(0.01)
    assert read(tmp_path)[0] == list(enumerate(simple(1)))
    writer.close()


def test_events_made_again_after_a_restart_are_left_out(tmp_path):
    events = simple(30)
    first = HistoryWriter(tmp_path)
    first.append(0, events[:20])
    again = HistoryWriter(tmp_path)
    assert again.written == 20
    for i in range(0, 30, 6):
        again.append(i, events[i : i + 6])
    found, reader = read(tmp_path)
    assert (found, reader.missing, reader.repeated) == (list(enumerate(events)), [], 0)
    assert list(numbered(tmp_path)) == [1, 2]
    first.close()
    again.close()


def test_events_that_stand_there_twice_are_given_once(tmp_path):
    for number, (start, stop) in enumerate([(0, 20), (10, 18), (14, 30)], start=1):
        raw_path(tmp_path, number).write_bytes(MAGIC + FrameEncoder().encode(start, simple(stop - start, start)))
    found, reader = read(tmp_path)
    assert found == list(enumerate(simple(30)))
    assert (reader.repeated, reader.missing) == (14, [])


def test_every_torn_tail_is_read_to_the_last_whole_frame(tmp_path):
    encoder, events = FrameEncoder(), simple(3)
    frames = [encoder.encode(i, [event]) for i, event in enumerate(events)]
    whole, ends = MAGIC + b"".join(frames), [len(MAGIC)]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    path = raw_path(tmp_path, 1)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found, reader = read(tmp_path)
        count = sum(end <= cut for end in ends[1:])
        assert found == list(enumerate(events[:count])), cut
        assert reader.missing == [], cut
        assert following_number(tmp_path) == count
        writer = HistoryWriter(tmp_path)
        writer.append(0, events)
        assert read(tmp_path)[0] == list(enumerate(events)), cut
        writer.close()
        (tmp_path / "00002.events.gz").unlink(missing_ok=True)


def test_no_damage_makes_the_reader_fail_or_goes_unseen(tmp_path):
    encoder, events, draw = FrameEncoder(), simple(40), random.Random(1)
    whole = MAGIC + b"".join(encoder.encode(i, events[i : i + 4]) for i in range(0, 40, 4))
    path = raw_path(tmp_path, 1)
    raw_path(tmp_path, 2).write_bytes(MAGIC + FrameEncoder().encode(40, simple(4, 40)))
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        found, reader = read(tmp_path)
        assert reader.missing
        assert found == [item for item in enumerate(simple(44)) if item in found]


def test_a_gap_and_a_missing_file_are_told(tmp_path):
    raw_path(tmp_path, 1).write_bytes(MAGIC + FrameEncoder().encode(0, simple(5)))
    raw_path(tmp_path, 3).write_bytes(MAGIC + FrameEncoder().encode(9, simple(5, 9)))
    found, reader = read(tmp_path)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]
    assert [text.removeprefix(str(tmp_path)) for text in reader.missing] == [
        ": file 00002 is not there",
        "/00003.events: events 5 to 8 are not there",
    ]


def test_files_are_rotated_compressed_and_read_in_order(tmp_path):
    writer, events = HistoryWriter(tmp_path, rotate_bytes=2000), simple(2000)
    for i, event in enumerate(events):
        writer.append(i, [event])
    writer.close()
    assert len(list(tmp_path.glob("*.gz"))) > 5
    assert not list(tmp_path.glob("*.events"))
    assert read(tmp_path)[0] == list(enumerate(events))


def test_a_file_that_is_compressed_while_it_is_read_is_still_found(tmp_path):
    for number, start in ((1, 0), (2, 5)):
        raw_path(tmp_path, number).write_bytes(MAGIC + FrameEncoder().encode(start, simple(5, start)))
    reading = HistoryReader(tmp_path).read()
    found = [next(reading)]
    compress(raw_path(tmp_path, 2))
    assert [*found, *reading] == list(enumerate(simple(10)))


def test_a_full_disk_stops_nobody_and_loses_nothing_that_it_takes_later(tmp_path, monkeypatch):
    writer, events = HistoryWriter(tmp_path), simple(30)
    writer.append(0, events[:10])
    real, left = os.write, [25]

    def full(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        part = data[: left[0]]
        left[0] -= len(part)
        return real(descriptor, part)

    monkeypatch.setattr(os, "write", full)
    writer.append(10, events[10:20])
    assert (writer.written, writer.lost) == (10, 0)
    assert read(tmp_path)[0] == list(enumerate(events[:10]))
    monkeypatch.setattr(os, "write", real)
    writer.append(20, events[20:])
    writer.close()
    found, reader = read(tmp_path)
    assert (found, reader.missing) == (list(enumerate(events)), [])


def test_what_was_never_given_is_a_gap(tmp_path):
    writer = HistoryWriter(tmp_path)
    writer.append(0, simple(3))
    writer.append(7, simple(3, 7))
    writer.append(20, simple(3, 20))
    assert writer.lost == 14
    writer.close()
    found, reader = read(tmp_path)
    assert [number for number, _ in found] == [0, 1, 2, 7, 8, 9, 20, 21, 22]
    assert "events 3 to 6 are not there" in reader.missing[0]
    assert "events 10 to 19 are not there" in reader.missing[1]
    with pytest.raises(ValueError, match="closed"):
        writer.append(23, simple(1))


def test_a_killed_writer_has_written_what_it_was_given(tmp_path):
    program = (
        "import sys; from pathlib import Path; from hpcrl.dataplane.history.writer import HistoryWriter\n"
        "from hpcrl.dataplane.ledger.events import Event\n"
        "writer = HistoryWriter(Path(sys.argv[1])); number = 0\n"
        "while True:\n"
        "    writer.append(number, [Event('life', number, 'a.0', number)]); number += 1\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(200):
            said = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        said = max([said, *(int(line) for line in child.stdout if line.endswith("\n"))])
    found, reader = read(tmp_path)
    assert len(found) >= said
    assert [number for number, _ in found] == list(range(len(found)))
    assert reader.missing == []


def test_row_ids_tell_where_a_row_comes_from():
    ids = RowIds(attempt=3, incarnation=2, writer=17)
    ids.take(5)
    row = int(ids.take(1)[0])
    assert origin(row) == (3, 2, 17, 5)
    assert describe(row) == "attempt 3, process 17, life 2, its row 5"
    assert row >> 45 == 3 * 256 + 2
