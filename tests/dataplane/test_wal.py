from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.wal import WriteAheadLog

ROOT = Path(__file__).parents[2]
RECORDS = [b"", b"a", b"b" * 300, bytes(range(256)), b"last"]
HEAD, FRAME = 8, 16
# Appends numbers, now and then as two in one write, and compacts; reports what was appended after each return.
WRITE = """
import os, struct, sys
from pathlib import Path
from hpcrl.dataplane.wal import WriteAheadLog
log = WriteAheadLog(Path(sys.argv[1]))
pack, pad = struct.Struct("<Q").pack, b"x" * int(sys.argv[2])
last = -1
for kind, data in log.replay():
    last = struct.unpack_from("<Q", data)[0]
os.write(1, pack(last + 1))
while True:
    if log.grown > 50 * len(pad):
        log.compact(pack(last) + pad * 50)
    more = 1 + (last % 3 == 0)
    log.append(*(pack(last + k) + pad for k in range(1, 1 + more)))
    last += more
    os.write(1, pack(last + 1))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ops.wal"


def write(path: Path, records: list[bytes] = RECORDS) -> bytes:
    log = WriteAheadLog(path)
    assert list(log.replay()) == []
    for record in records:
        log.append(record)
    log.close()
    return path.read_bytes()


def replay(path: Path) -> list[tuple[str, bytes]]:
    log = WriteAheadLog(path)
    try:
        return list(log.replay())
    finally:
        log.close()


def as_records(records: list[bytes]) -> list[tuple[str, bytes]]:
    return [("record", record) for record in records]


def ends(records: list[bytes]) -> list[int]:
    found = [HEAD]
    for record in records:
        found.append(found[-1] + FRAME + len(record))
    return found


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=8), st.integers(0, 8), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_appended_comes_back(tmp_path, batches, compact_at, sync):
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    log = WriteAheadLog(path, sync=sync)
    expected: list[tuple[str, bytes]] = []
    for number, batch in enumerate(batches):
        if number == compact_at:
            log.compact(b"state")
            expected = [("state", b"state")]
        log.append(*batch)
        expected += as_records(batch)
    assert log.size == path.stat().st_size
    log.close()
    assert replay(path) == expected


def test_only_its_user_can_read_it(path):
    write(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", range(1, FRAME + 4 + 1))
def test_a_torn_tail_is_cut_off_and_the_log_goes_on(path, cut):
    data = write(path)
    path.write_bytes(data[:-cut])
    log = WriteAheadLog(path)
    assert list(log.replay()) == as_records(RECORDS[:-1])
    assert log.cut == FRAME + 4 - cut
    log.append(b"new")
    log.close()
    assert replay(path) == as_records([*RECORDS[:-1], b"new"])


@pytest.mark.parametrize("tail", [b"\0" * 100, b"junk", b"\xf5\x1eWL", b"\xff" * 4000])
def test_junk_after_the_end_is_cut_off(path, tail):
    data = write(path)
    path.write_bytes(data + tail)
    assert replay(path) == as_records(RECORDS)
    assert path.read_bytes() == data


def test_any_changed_byte_is_found(path):
    data = write(path)
    bounds = ends(RECORDS)
    source = random.Random(0)
    for at in range(HEAD, len(data)):
        changed = bytearray(data)
        changed[at] ^= source.randrange(1, 256)
        path.write_bytes(changed)
        frame = max(number for number, end in enumerate(bounds) if end <= at)
        if frame == len(RECORDS) - 1:
            assert replay(path) == as_records(RECORDS[:-1])
        else:
            with pytest.raises(DataPlaneError, match=f"{path} is damaged from byte {bounds[frame]} on"):
                replay(path)
            assert path.read_bytes() == changed


def test_a_log_within_a_record_is_no_sign_of_a_good_frame(path, tmp_path):
    inner = write(tmp_path / "inner")
    data = write(path, [b"one", inner])
    path.write_bytes(data[:-1])
    assert replay(path) == as_records([b"one"])


def test_another_file_is_refused_and_left_alone(path):
    path.write_bytes(b"something else")
    with pytest.raises(DataPlaneError, match="is no write-ahead log"):
        WriteAheadLog(path)
    assert path.read_bytes() == b"something else"


def test_a_log_that_cannot_be_made_says_where(tmp_path):
    with pytest.raises(DataPlaneError, match=f"cannot open {tmp_path}/no/log: No such file"):
        WriteAheadLog(tmp_path / "no" / "log")


@pytest.mark.parametrize("size", range(HEAD + 1))
def test_a_maker_killed_at_once_leaves_an_empty_log(path, size):
    path.write_bytes(b"hpcrlwal"[:size])
    log = WriteAheadLog(path)
    assert list(log.replay()) == []
    log.append(b"a")
    log.close()
    assert replay(path) == as_records([b"a"])


def test_what_is_there_must_be_replayed_first(path):
    write(path)
    log = WriteAheadLog(path)
    records = log.replay()
    next(records)
    for attempt in (lambda: log.append(b"x"), lambda: log.compact(b"x")):
        with pytest.raises(DataPlaneError, match="replay it to its end"):
            attempt()
    assert len(list(records)) == len(RECORDS) - 1
    log.append(b"x")


def test_sizes_say_when_to_compact(path):
    log = WriteAheadLog(path)
    log.append(b"abc")
    assert (log.size, log.grown) == (HEAD + FRAME + 3, FRAME + 3)
    log.compact(b"12345")
    assert (log.size, log.grown) == (HEAD + FRAME + 5, 0)
    log.append(b"abc")
    log.close()
    again = WriteAheadLog(path)
    list(again.replay())
    assert (again.size, again.grown) == (HEAD + 2 * FRAME + 8, FRAME + 3)


def test_two_never_write_one_log(path):
    log = WriteAheadLog(path)
    for _ in range(2):
        with pytest.raises(DataPlaneError, match="another process writes"):
            WriteAheadLog(path)
        log.compact(b"s")
    log.close()
    log.close()
    WriteAheadLog(path).close()


@pytest.mark.parametrize("closed", [False, True])
def test_a_log_compacted_while_another_opens_it_is_opened_anew_or_not_at_all(path, monkeypatch, closed):
    log, flock = WriteAheadLog(path), fcntl.flock
    calls = iter(range(9))

    def meanwhile(descriptor: int, operation: int) -> None:
        if next(calls) == 0:
            log.compact(b"s")
            if closed:
                log.close()
        flock(descriptor, operation)

    monkeypatch.setattr("hpcrl.dataplane.wal.fcntl.flock", meanwhile)
    if closed:
        assert replay(path) == [("state", b"s")]
    else:
        with pytest.raises(DataPlaneError, match="another process writes"):
            WriteAheadLog(path)


def test_a_failed_opening_holds_no_lock(path):
    path.write_bytes(b"something else")
    with pytest.raises(DataPlaneError):
        WriteAheadLog(path)
    path.unlink()
    WriteAheadLog(path)


def test_a_closed_log_says_so(path):
    log = WriteAheadLog(path)
    log.close()
    with pytest.raises(DataPlaneError, match="was closed"):
        log.append(b"x")


def test_threads_append_whole_records(path):
    log = WriteAheadLog(path)

    def work(value: int) -> None:
        for number in range(200):
            log.append(bytes([value]) * (1 + number))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = [data for _, data in replay(path)]
    for value in range(4):
        assert [len(data) for data in found if data[0] == value] == list(range(1, 201))


def test_a_forked_child_may_not_append(path):
    log = WriteAheadLog(path)
    child = os.fork()
    if child == 0:
        try:
            log.append(b"x")
        except DataPlaneError as error:
            os._exit(3 if "parent of this process" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_full_disk_leaves_the_log_as_it_was(path, files_up_to):
    log = WriteAheadLog(path)
    log.append(b"a" * 1000)
    size = log.size
    for attempt in (lambda: log.append(b"b" * 4000), lambda: log.append(b"c", b"d" * 4000), lambda: log.compact(b"e" * 5000)):
        says = r"cannot write .* MiB to .*ops.wal: File too large; .* MiB free"
        with files_up_to(4096), pytest.raises(DataPlaneError, match=says):
            attempt()
        assert path.stat().st_size == log.size == size
    assert [one.name for one in path.parent.iterdir()] == ["ops.wal"]
    log.append(b"f" * 1000)
    log.close()
    assert replay(path) == as_records([b"a" * 1000, b"f" * 1000])


def test_an_interrupted_append_is_taken_back(path, monkeypatch):
    log = WriteAheadLog(path)
    log.append(b"a")
    written = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        written(descriptor, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpcrl.dataplane.wal.os.write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"b")
    log.append(b"c")
    log.close()
    assert replay(path) == as_records([b"a", b"c"])


def test_an_interrupted_compaction_stops_appends_to_the_replaced_file(path, monkeypatch):
    log = WriteAheadLog(path)
    log.append(b"a")

    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcrl.dataplane.wal.sync_path", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.compact(b"s")
    with pytest.raises(DataPlaneError, match="open it again and replay it"):
        log.append(b"b")
    log.close()
    assert replay(path) == [("state", b"s")]


@pytest.mark.slow
@pytest.mark.parametrize("pad", [100, 100_000])
def test_whenever_it_is_killed_nothing_acknowledged_is_lost(path, pad):
    source = random.Random(pad)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = 0
    for _ in range(8):
        command = [sys.executable, "-c", WRITE, str(path), str(pad)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.read(8) == struct.pack("<Q", before)
            timer = threading.Timer(source.uniform(0, 0.15), process.kill)
            timer.start()
            acknowledged = before
            while len(report := process.stdout.read(8)) == 8:
                acknowledged = struct.unpack("<Q", report)[0]
        found = replay(path)
        numbers = [struct.unpack_from("<Q", data)[0] for _, data in found]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else acknowledged == 0
        assert all(data[8:] == b"x" * (pad * (50 if kind == "state" else 1)) for kind, data in found)
        assert found[0][0] == "state" if numbers and numbers[0] > 0 else True
        before = numbers[-1] + 1 if numbers else 0
        assert acknowledged <= before <= acknowledged + 2
        assert before > 0
