from __future__ import annotations

import gc
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.shm.folders import attempt_folder, remove_attempt
from hpcrl.dataplane.shm.layout import ALIGN, SegmentName, size_class
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter

SEGMENT = 2**16
SMALL = SEGMENT // 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return attempt_folder("r", 1, tmp_path)


def make(folder: Path, who: str = "a.0", life: int = 1, **options: int) -> SegmentWriter:
    return SegmentWriter(folder, who, life, "n", **{"segment_bytes": SEGMENT, **options})


def fill(writer: SegmentWriter, value: int, size: int = SMALL) -> Ref:
    return writer.write([bytes([value]) * size])


def fill_segment(writer: SegmentWriter, value: int) -> list[Ref]:
    """Blocks of one value until the next segment begins; the last ref lies in that one."""
    refs = [fill(writer, value)]
    while refs[-1].where == refs[0].where:
        refs.append(fill(writer, value))
    return refs


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*/*") if path.parent.parent.name != "owners")


@given(st.lists(st.lists(st.binary(max_size=9000), max_size=4), min_size=1, max_size=12))
@settings(max_examples=30)
def test_every_block_comes_back(tmp_path_factory, blocks):
    folder = attempt_folder("r", 1, tmp_path_factory.mktemp("shm"))
    writer, reader = make(folder, segment_bytes=4096), SegmentReader(folder, "n")
    refs = [writer.write(parts) for parts in blocks]
    assert [bytes(reader.read(ref)) for ref in refs] == [b"".join(parts) for parts in blocks]
    assert {ref.offset % ALIGN for ref in refs} == {0}
    writer.close()


def test_parts_may_be_arrays_of_any_type(folder):
    writer = make(folder)
    ref = writer.write([np.arange(3, dtype=np.int64), memoryview(b"ab"), bytearray(b"c")])
    assert bytes(SegmentReader(folder, "n").read(ref)) == np.arange(3, dtype=np.int64).tobytes() + b"abc"


def test_a_large_block_has_a_segment_of_its_own_and_small_ones_go_on(folder):
    writer = make(folder)
    before, large, after = fill(writer, 1), fill(writer, 2, 3 * SEGMENT), fill(writer, 3)
    assert before.where == after.where != large.where
    reader = SegmentReader(folder, "n")
    assert set(reader.read(large)) == {2}
    assert set(reader.read(after)) == {3}


def test_threads_never_share_bytes(folder):
    writer, reader = make(folder), SegmentReader(folder, "n")

    def work(value: int) -> list[Ref]:
        return [fill(writer, value, 100 + value) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(work, range(4)))
    for value, refs in enumerate(made):
        assert all(bytes(reader.read(ref)) == bytes([value]) * (100 + value) for ref in refs)


def test_what_is_free_is_used_again_under_another_name(folder):
    writer, reader = make(folder), SegmentReader(folder, "n")
    *refs, _ = fill_segment(writer, 1)
    inode = (folder / refs[0].where).stat().st_ino
    writer.freed({refs[0].where: len(refs)})
    with pytest.raises(DataPlaneError, match="its block was cleared"):
        reader.read(refs[0])
    new = fill_segment(writer, 2)[-1]
    assert (folder / new.where).stat().st_ino == inode
    assert new.where != refs[0].where
    with pytest.raises(DataPlaneError, match="its block was cleared"):
        reader.read(refs[0])


def test_a_segment_with_blocks_under_way_to_the_ledger_is_left_alone(folder):
    writer = make(folder)
    *refs, _ = fill_segment(writer, 1)
    writer.freed({refs[0].where: len(refs) - 1})
    assert (folder / refs[0].where).exists()
    writer.discard(refs[-1:])
    assert not (folder / refs[0].where).exists()


def test_the_segment_being_filled_is_kept_until_it_is_full(folder):
    writer = make(folder)
    first = fill(writer, 1)
    writer.freed({first.where: 1})
    second = fill(writer, 2)
    assert second.where == first.where
    writer.discard([second])
    refs = [fill(writer, 3)]
    while refs[-1].where == first.where:
        refs.append(fill(writer, 3))
    writer.discard(refs[:-1])
    assert not (folder / first.where).exists()


def test_a_block_that_could_not_be_written_counts_as_discarded(folder):
    writer = make(folder)

    def fail(out: np.ndarray) -> None:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        writer.place(SEGMENT, fail)
    assert names(folder) == ["00000.spare"]


def test_what_a_reader_still_looks_at_never_changes(folder):
    writer, reader = make(folder, spare_bytes=8 * SEGMENT), SegmentReader(folder, "n")
    *refs, _ = fill_segment(writer, 1)
    seen = reader.read(refs[0])
    writer.freed({refs[0].where: len(refs)})
    inodes = set()
    for value in range(2, 8):
        *more, _ = fill_segment(writer, value)
        inodes.add((folder / more[0].where).stat().st_ino)
        writer.freed({more[0].where: len(more)})
        assert set(seen) == {1}
    spares = [path for path in folder.glob("*/*/*.spare") if path.stat().st_ino not in inodes]
    assert len(spares) == 1, "the segment that is looked at was used again"
    inode = spares[0].stat().st_ino
    del seen
    reader.release()
    gc.collect()
    used = set()
    for value in range(8, 12):
        *more, _ = fill_segment(writer, value)
        used.add((folder / more[0].where).stat().st_ino)
    assert inode in used, "the segment that nobody looks at any more was not used again"


def test_a_slow_reader_never_sees_a_later_block(folder):
    writer = make(folder, spare_bytes=8 * SEGMENT)
    newest: list[tuple[Ref, int]] = []
    wrong, seen, end = [], [], threading.Event()

    def read() -> None:
        reader, source = SegmentReader(folder, "n"), random.Random(0)
        while not end.is_set():
            ref, value = source.choice(newest[-40:])
            try:
                data = reader.read(ref)
            except DataPlaneError:
                continue
            seen.append(value)
            if not (data == value).all():
                wrong.append(value)

    newest.append((fill(writer, 0), 0))
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    made: dict[str, int] = {}
    for number in range(1200):
        value = 1 + number % 250
        ref = fill(writer, value)
        newest.append((ref, value))
        made[ref.where] = made.get(ref.where, 0) + 1
        if len(made) > 3:
            name = next(iter(made))
            writer.freed({name: made.pop(name)})
    end.set()
    for reader in readers:
        reader.join()
    assert seen
    assert not wrong
    assert len({path.stat().st_ino for path in folder.glob("*/*/*")}) < 20, "nothing was used again"


def test_a_removed_segment_stays_readable_through_its_array(folder):
    writer, reader = make(folder), SegmentReader(folder, "n")
    ref = fill(writer, 7, SEGMENT)
    data = reader.read(ref)
    writer.close()
    assert remove_attempt(folder)
    assert set(data) == {7}
    with pytest.raises(DataPlaneError, match="or the attempt has ended"):
        reader.read(ref)


def test_mappings_of_segments_that_are_gone_are_let_go(folder):
    writer, reader = make(folder), SegmentReader(folder, "n")
    *refs, last = fill_segment(writer, 1)
    reader.read(refs[0])
    assert mapped_to_read(folder) == ["00000.seg"]
    writer.freed({refs[0].where: len(refs)})
    reader.read(last)
    assert mapped_to_read(folder) == ["00001.seg"]
    reader.release()
    assert mapped_to_read(folder) == []


def mapped_to_read(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.rpartition("/")[2] for line in lines if f" {folder}/" in line and (" r--s " in line or " rw-p " in line)]


def test_arrays_cannot_be_written(folder):
    data = SegmentReader(folder, "n").read(fill(make(folder), 1))
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 2


def changed(ref: Ref, **fields: object) -> Ref:
    return msgspec.structs.replace(ref, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offset": 0}, "its header"),
        ({"offset": -64}, "its header"),
        ({"size": -1}, "its header"),
        ({"size": SEGMENT}, "its header"),
        ({"offset": 2**62, "size": 2**62}, "its header"),
        ({"where": "a.0/1/00009.seg"}, "No such file"),
        ({"where": "../r/a1/a.0/1/00000.seg"}, "names no segment"),
        ({"where": "../1/00000.seg"}, "names no segment"),
        ({"where": "/etc/passwd"}, "names no segment"),
        ({"kind": "tq"}, "names no segment"),
        ({"node": "elsewhere"}, "lies on node 'elsewhere', this is 'n'"),
    ],
)
def test_a_ref_that_leads_elsewhere_is_refused(folder, fields, message):
    ref = fill(make(folder), 1)
    with pytest.raises(DataPlaneError, match=message):
        SegmentReader(folder, "n").read(changed(ref, **fields))


def test_a_segment_of_another_writer_life_or_run_is_refused(folder, tmp_path):
    ref = fill(make(folder), 1)
    other = attempt_folder("other", 1, tmp_path)
    for target in (folder / "b.0/1/00000.seg", folder / "a.0/2/00000.seg", folder / "a.0/1/00005.seg", other / ref.where):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / ref.where, target)
        root = other if target.is_relative_to(other) else folder
        with pytest.raises(DataPlaneError, match=r"is no segment of|is used for other blocks"):
            SegmentReader(root, "n").read(changed(ref, where=target.relative_to(root).as_posix()))


@pytest.mark.parametrize("size", [0, 10, 63, 64, 5000])
def test_a_file_cut_short_is_refused(folder, size):
    ref = fill(make(folder), 1)
    os.truncate(folder / ref.where, size)
    with pytest.raises(DataPlaneError, match="was damaged"):
        SegmentReader(folder, "n").read(ref)


def test_no_room_is_said_and_leaves_nothing(folder, files_up_to):
    writer, reader = make(folder), SegmentReader(folder, "n")
    ref = fill(writer, 1)
    says = r"cannot write .* MiB to .*00001.seg: .* MiB free, see `df"
    with files_up_to(2 * SEGMENT), pytest.raises(DataPlaneError, match=says):
        fill(writer, 2, 4 * SEGMENT)
    assert names(folder) == ["00000.seg"]
    assert set(reader.read(ref)) == {1}
    assert set(reader.read(fill(writer, 2, 4 * SEGMENT))) == {2}


def test_more_spares_than_may_be_are_removed(folder):
    writer = make(folder, spare_bytes=2 * SEGMENT)
    refs = [fill(writer, 1, SEGMENT // 2) for _ in range(8)]
    writer.freed({ref.where: 1 for ref in refs})
    kept = sum(path.stat().st_size for path in folder.glob("*/*/*.spare"))
    assert 0 < kept <= 2 * SEGMENT
    writer.freed({ref.where: 1 for ref in refs})
    writer.close()
    assert names(folder) == []


def test_a_new_life_finds_what_earlier_ones_left(folder):
    old = make(folder)
    *refs, last = fill_segment(old, 1)
    spare = fill(old, 2, SEGMENT)
    old.freed({spare.where: 1})
    new = make(folder, life=2)
    assert new.earlier() == sorted([refs[0].where, last.where])
    assert not list(folder.glob("*/*/*.spare"))
    new.freed({refs[0].where: 1, last.where: 1})
    assert new.earlier() == []
    assert not (folder / "a.0/1").exists()


def test_an_earlier_life_that_still_runs_goes_on_or_is_told(folder):
    old = make(folder, spare_bytes=2**30)
    kept, spare, live = fill(old, 0), fill(old, 1, SEGMENT), fill(old, 2, SEGMENT)
    old.freed({spare.where: 1})
    new = make(folder, life=2)
    again = fill(old, 3, SEGMENT)
    assert set(SegmentReader(folder, "n").read(again)) == {3}
    new.freed({live.where: 1, again.where: 1})
    old.freed({live.where: 1, again.where: 1})
    assert names(folder) == ["00000.seg"]
    new.freed({kept.where: 1})
    with pytest.raises(DataPlaneError, match="No such file"):
        fill(old, 4, SEGMENT)


def test_a_life_begins_once(folder):
    make(folder)
    with pytest.raises(DataPlaneError, match="a life of its own"):
        make(folder)
    make(folder, who="b.0")


@pytest.mark.parametrize("name", ["b.0/1/00000.seg", "a.0/1/../../x.seg"])
def test_segments_of_others_cannot_be_freed(folder, name):
    with pytest.raises(DataPlaneError, match="not its own"):
        make(folder).freed({name: 1})


def test_a_closed_writer_leaves_what_is_live_and_writes_no_more(folder):
    writer = make(folder)
    ref = fill(writer, 1)
    writer.close()
    writer.close()
    assert set(SegmentReader(folder, "n").read(ref)) == {1}
    with pytest.raises(DataPlaneError, match="are closed"):
        fill(writer, 2)


def test_a_forked_child_may_not_write(folder):
    writer = make(folder)
    child = os.fork()
    if child == 0:
        try:
            fill(writer, 1)
        except DataPlaneError as error:
            os._exit(3 if "forked" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_more_segments_than_stay_mapped(folder, monkeypatch):
    monkeypatch.setattr("hpcrl.dataplane.shm.writer.MAPPED", 2)
    writer, reader = make(folder, spare_bytes=2**30), SegmentReader(folder, "n")
    refs = [fill(writer, value, SEGMENT) for value in range(6)]
    assert [int(reader.read(ref)[-1]) for ref in refs] == list(range(6))
    writer.freed({ref.where: 1 for ref in refs})
    for value in range(10, 16):
        assert set(reader.read(fill(writer, value, SEGMENT))) == {value}
    assert not list(folder.glob("*/*/*.spare"))


@given(st.integers(0, 2**40))
def test_a_size_class_holds_the_size_with_little_waste(size):
    found = size_class(size)
    assert found >= size
    assert found % 4096 == 0
    assert found - size <= max(4096, size // 8)
    assert size_class(found) == found


@given(st.text(max_size=20))
def test_only_names_of_segments_parse(text):
    name = SegmentName.parse(f"{text}/1/00001.seg")
    assert name is None or (str(name) == f"{text}/1/00001.seg" and "/" not in name.who and name.who not in ("", ".", ".."))


def test_a_large_block_is_the_readers_own(folder):
    writer = SegmentWriter(folder, "rollout.0", 1, "n", segment_bytes=SEGMENT)
    ref = writer.write([b"a" * SEGMENT])
    first, second = (SegmentReader(folder, "n").read(ref) for _ in range(2))
    first[:] = 0
    assert bytes(second) == b"a" * SEGMENT
    assert bytes(SegmentReader(folder, "n").read(ref)) == b"a" * SEGMENT
    writer.close()
