"""Values of a storage unit, without its sockets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcrl.dataplane.interface import DataPlaneError

pytestmark = pytest.mark.slow  # imports torch and TransferQueue


@pytest.fixture
def begin(tmp_path: Path):
    from hpcrl.dataplane.transferqueue.durable import DurableData

    os.chmod(tmp_path, 0o700)
    made: list[Any] = []

    def start() -> Any:
        for one in made[-1:]:
            one.close()
        made.append(DurableData(tmp_path / "a1", who="queue.1", life=256 + len(made), node="here"))
        return made[-1]

    yield start
    made[-1].close()


def values(*numbers: int) -> Any:
    import torch

    return torch.tensor([[number] * 3000 for number in numbers], dtype=torch.uint8)


def got(data: Any, field: str, *indexes: int) -> list[int]:
    return [int(value[0]) for value in data.get_data([field], list(indexes))[field]]


def segments(folder: Path) -> int:
    return len(list(folder.glob("a1/queue.1/**/*.seg")))


def test_a_later_life_has_the_values_of_all_earlier_ones(begin):
    begin().put_data({"f": values(1, 2), "g": values(3, 4)}, [10, 20])
    second = begin()
    second.clear([10])
    second.put_data({"f": values(5)}, [30])
    third = begin()
    assert got(third, "f", 20, 30) == [2, 5]
    assert got(third, "g", 20) == [4]
    assert third.active_key_count == 2
    with pytest.raises(Exception, match="10"):
        third.get_data(["f"], [10])


def test_a_value_written_again_replaces_the_first(begin):
    data = begin()
    data.put_data({"f": values(1)}, [10])
    data.put_data({"f": values(2)}, [10])
    assert got(data, "f", 10) == [2]
    assert got(begin(), "f", 10) == [2]


def test_nothing_is_left_after_all_is_cleared(begin, tmp_path):
    begin().put_data({"f": values(1, 2)}, [1, 2])
    data = begin()
    assert segments(tmp_path) == 1
    data.put_data({"f": values(3)}, [3])
    data.clear([1, 2, 3])
    data.close()
    assert segments(tmp_path) == 0
    assert begin().active_key_count == 0


def test_a_log_that_has_grown_begins_anew_with_what_is_there(begin, monkeypatch, tmp_path):
    from hpcrl.dataplane.transferqueue import durable

    monkeypatch.setattr(durable, "_COMPACT_BYTES", 2000)
    data = begin()
    for number in range(100):
        data.put_data({"f": values(number)}, [number])
        data.clear([number - 3])
    assert (tmp_path / "a1" / "queue.1.wal").stat().st_size < 8000
    assert got(begin(), "f", 97, 98, 99) == [97, 98, 99]


def test_a_log_without_room_leaves_nothing_written(begin, monkeypatch, tmp_path):
    data = begin()

    def full(*_: bytes) -> None:
        raise DataPlaneError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(data._log, "append", full)
        with pytest.raises(DataPlaneError, match="no room"):
            data.put_data({"f": values(1)}, [1])
    data.close()
    assert segments(tmp_path) == 0
