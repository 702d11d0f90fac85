import errno
import os
import threading

import pytest

from hpcrl.run.atomic import write_json
from hpcrl.run.digest import digest_bytes
from hpcrl.run.disk import (
    PIECE,
    FileDamaged,
    FileRecord,
    FileWriter,
    check_file,
    explain,
    make_folder,
    read_file,
    remove_tree,
    rename,
    write_file,
)
from hpcrl.run.failpoints import armed


def test_a_written_file_is_what_its_record_says(tmp_path):
    chunks = [b"a" * (PIECE + 3), memoryview(bytearray(5)), b""]
    record = write_file(tmp_path / "f", chunks)
    data = b"".join(chunks)
    assert record == FileRecord("f", len(data), digest_bytes(data))
    assert read_file(tmp_path / "f") == data
    check_file(tmp_path, record)


@pytest.mark.parametrize("place", [0, 57, 99])
def test_one_changed_byte_is_found_and_named(tmp_path, place):
    record = write_file(tmp_path / "f", [bytes(100)])
    data = bytearray(100)
    data[place] = 1
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FileDamaged, match=f"{tmp_path / 'f'} is damaged: its checksum"):
        check_file(tmp_path, record)


def test_a_short_and_a_missing_file_are_named(tmp_path):
    record = write_file(tmp_path / "f", [bytes(100)])
    os.truncate(tmp_path / "f", 99)
    with pytest.raises(FileDamaged, match="99 bytes, 100 were written"):
        check_file(tmp_path, record)
    os.unlink(tmp_path / "f")
    with pytest.raises(FileDamaged, match=r"cannot be checked: .*No such file"):
        check_file(tmp_path, record)


@pytest.mark.parametrize("point", ["disk.create", "disk.write", "disk.fsync"])
@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EROFS", "EIO"])
def test_a_file_that_cannot_be_written_is_named_and_gone(tmp_path, point, code):
    with armed(f"{point}=errno:{code}"), pytest.raises(OSError, match=str(tmp_path / "f")) as caught:
        write_file(tmp_path / "f", [b"x"])
    assert caught.value.errno == getattr(errno, code)
    assert not (tmp_path / "f").exists()


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path):
    with armed("disk.write@3+=errno:ENOSPC"), pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "f", [bytes(10)] * 5)
    assert os.listdir(tmp_path) == []


def test_a_file_that_failed_once_is_not_written_any_more(tmp_path):
    file = FileWriter(tmp_path / "f")
    with armed("disk.write=errno:ENOSPC"), pytest.raises(OSError, match="No space"):
        file.write(b"x")
    # Its number may be this file's.
    with open(tmp_path / "other", "wb") as other:
        for call in (lambda: file.write(b"x"), file.finish):
            with pytest.raises(OSError, match="No space"):
                call()
        file.give_up()
        other.write(b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


def test_a_taken_name_is_waited_for_and_then_refused(tmp_path):
    (tmp_path / "f").write_text("of another")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "f", [b"x"], seconds=0.05)
    assert (tmp_path / "f").read_text() == "of another"
    remover = threading.Timer(0.05, (tmp_path / "f").unlink)
    remover.start()
    assert write_file(tmp_path / "f", [b"x"]).size == 1
    remover.join()
    with armed("disk.create=errno:EEXIST"):
        assert write_file(tmp_path / "g", [b"x"]).size == 1


def test_a_late_file_is_waited_for_as_long_as_asked(tmp_path):
    record = write_file(tmp_path / "f", [b"x"])
    with armed("disk.open=late:0.05"):
        with pytest.raises(FileNotFoundError):
            read_file(tmp_path / "f")
        assert read_file(tmp_path / "f", seconds=30) == b"x"
    with armed("disk.open=late:0.05"):
        check_file(tmp_path, record, seconds=30)


def test_folders_are_made_by_several_at_once_and_once_where_they_must_be_new(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a" / "b", new=True)
    rename(tmp_path / "a" / "b", tmp_path / "c")
    assert (tmp_path / "c").is_dir()


def test_removing_goes_on_where_another_adds_or_removes(tmp_path):
    (tmp_path / "d").mkdir()
    with armed("disk.unlink=errno:ENOTEMPTY"):
        remove_tree(tmp_path / "d")
    remove_tree(tmp_path / "d")
    (tmp_path / "f").touch()
    remove_tree(tmp_path / "f")
    assert os.listdir(tmp_path) == []


def test_atomic_files_fail_as_others_do(tmp_path):
    write_json(tmp_path / "f", 1)
    for point in ("disk.create", "disk.write", "disk.fsync", "disk.rename"):
        with armed(f"{point}~/f=errno:EROFS"), pytest.raises(OSError, match="Read-only"):
            write_json(tmp_path / "f", 2)
    assert (tmp_path / "f").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("name", ["plain", "with space", "Zürich 東京"])
def test_an_error_says_who_where_which_file_and_what_to_do(tmp_path, name):
    path = tmp_path / name
    text = str(
        explain("trainer rank 3", "the state of step 12 cannot be written", OSError(errno.ENOSPC, "No space", str(path)))
    )
    assert text.startswith("trainer rank 3 on ")
    assert f"the state of step 12 cannot be written: {path}: No space; the disk is full" in text
