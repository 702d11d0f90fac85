import threading

import pytest

from hpcrl.checkpoint.state.layout import StateError
from hpcrl.checkpoint.state.part import Part, Shard, await_parts, leave_word, read_part, write_part
from hpcrl.run.disk import write_file
from hpcrl.run.failpoints import armed


def part(save, rank):
    file = write_file(save / f"__{rank}_0.distcp", [bytes(rank + 1)])
    shards = [Shard("w", (rank, 0), 0, file.name, 0, rank + 1), Shard("whole", None, None, file.name, 0, 0)]
    return Part(rank=rank, host="n1", files=[file], shards=shards)


def test_parts_come_back_in_the_ranks_order(tmp_path):
    parts = [part(tmp_path, rank) for rank in range(12)]
    for one in reversed(parts):
        record = write_part(tmp_path, one)
        assert read_part(tmp_path, one.rank) == (one, record)
    assert [one for one, _ in await_parts(tmp_path, 12, seconds=0)] == parts


def test_a_late_part_is_waited_for(tmp_path):
    write_part(tmp_path, part(tmp_path, 0))
    late = threading.Timer(0.1, lambda: write_part(tmp_path, part(tmp_path, 1)))
    late.start()
    assert len(await_parts(tmp_path, 2, seconds=60)) == 2
    late.join()


def test_ranks_that_left_nothing_are_named(tmp_path):
    write_part(tmp_path, part(tmp_path, 1))
    with pytest.raises(StateError, match=r"waited 0.05 s for the parts of all ranks in .*: nothing came from ranks \[0, 2\]"):
        await_parts(tmp_path, 3, seconds=0.05)


def test_a_file_that_is_not_there_in_its_size_is_named(tmp_path):
    write_part(tmp_path, part(tmp_path, 0))
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(StateError, match=r"__0_0\.distcp of rank 0 has 0 bytes of 1"):
        await_parts(tmp_path, 1, seconds=0.05)
    (tmp_path / "__0_0.distcp").unlink()
    with pytest.raises(StateError, match=r"__0_0\.distcp of rank 0 has no bytes of 1"):
        await_parts(tmp_path, 1, seconds=0.05)


def test_a_rank_that_failed_ends_the_wait_at_once(tmp_path):
    write_part(tmp_path, part(tmp_path, 0))
    leave_word(tmp_path, 2, "trainer rank 2 on n7: the disk is full")
    with pytest.raises(StateError, match="rank 2 on n7: the disk is full"):
        await_parts(tmp_path, 3, seconds=60)


def test_word_that_cannot_be_left_harms_nobody(tmp_path):
    leave_word(tmp_path / "nowhere", 1, "text")
    with armed("disk.write=errno:ENOSPC"):
        leave_word(tmp_path, 1, "text")
    assert not list(tmp_path.iterdir())
