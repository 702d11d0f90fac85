"""Bytes between a process and storage units that are killed and come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.rowids import RowIds
from hpcrl.dataplane.shm.folders import usage
from hpcrl.run.stop import wait_for
from hpcrl.testing.queue_processes import QueueProcesses

pytestmark = pytest.mark.slow  # imports torch and TransferQueue
KEY = "0123456789abcdef" * 3


def arrays(number: int, size: int = 5000) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(number)
    return {f"s/{name}": draw.integers(0, 256, size + k, np.uint8) for k, name in enumerate(("a", "b"))}


class Movers:
    """Makes movers, each with numbers of its own."""

    def __init__(self, queue: QueueProcesses) -> None:
        self._queue, self._made = queue, list[Any]()

    def __call__(self, unit: int = 0, call_s: float = 60.0) -> Any:
        from hpcrl.dataplane.transferqueue.mover import Mover

        ids = RowIds(attempt=1, incarnation=0, writer=len(self._made))
        self._made.append(Mover(f"x.{len(self._made)}", self._queue.storage, key=KEY, unit=unit, ids=ids, call_s=call_s))
        return self._made[-1]

    def close(self) -> None:
        for mover in self._made:
            mover.close()


@pytest.fixture
def movers(units: QueueProcesses) -> Iterator[Movers]:
    made = Movers(units)
    yield made
    made.close()


def check(mover: Any, refs: list[dict[str, Any]], numbers: list[int], size: int = 5000) -> None:
    flat = [ref for of_block in refs for ref in of_block.values()]
    expected = [data for number in numbers for data in arrays(number, size).values()]
    found = mover.read(flat)
    assert [array.tobytes() for array in found] == [data.tobytes() for data in expected]
    assert all(array.flags.writeable for array in found)


def segment_bytes(queue: QueueProcesses) -> int:
    return sum(size for who, size in usage(queue.folder).by_writer.items() if not who.endswith(".wal"))


def test_whoever_asks_gets_the_bytes_from_the_unit_that_has_them(movers):
    here, there, reader = movers(0), movers(1), movers()
    first, second = here.write([arrays(1), arrays(2)]), there.write([arrays(3), {}, arrays(4)])
    assert second[1] == {}
    check(reader, first + second, [1, 2, 3, 4])
    check(reader, second[2:] + first[:1], [4, 1])


def test_blocks_of_different_fields_are_written_together(movers):
    mover = movers()
    some, all_of_it = {"s/a": arrays(1)["s/a"]}, arrays(2)
    refs = mover.write([some, all_of_it])
    assert [list(of_block) for of_block in refs] == [["s/a"], ["s/a", "s/b"]]
    found = mover.read([refs[1]["s/b"], refs[0]["s/a"]])
    assert [array.tobytes() for array in found] == [all_of_it["s/b"].tobytes(), some["s/a"].tobytes()]


def test_a_value_larger_than_a_request_travels_in_pieces(movers):
    from hpcrl.dataplane.transferqueue.pieces import REQUEST_BYTES

    writer, reader, size = movers(), movers(), 2 * REQUEST_BYTES + 12345
    refs = writer.write([arrays(1, size), arrays(2), arrays(3)])
    check(reader, refs[:1], [1], size)
    check(reader, refs[1:], [2, 3])


def test_values_that_were_cleared_are_gone(movers):
    mover = movers(call_s=5.0)
    refs = mover.write([arrays(1), arrays(2)])
    mover.clear([refs[0]["s/a"].index])
    wait_for("the clear", lambda: not mover._clearing or None, seconds=20)
    check(mover, refs[1:], [2])
    with pytest.raises(DataPlaneError, match=r"cannot fetch rows.*not found"):
        mover.read([refs[0]["s/b"]])


def test_a_closed_mover_says_so_and_one_that_reads_does_not_write(movers, units):
    from hpcrl.dataplane.transferqueue.mover import Mover

    mover = movers()
    mover.close()
    mover.clear([1])
    with pytest.raises(DataPlaneError, match="closed"):
        mover.write([arrays(1)])
    reader = Mover("x", units.storage, key=KEY, unit=0, call_s=5.0)
    with pytest.raises(DataPlaneError, match="read only"):
        reader.write([arrays(1)])
    reader.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[QueueProcesses]:
    with QueueProcesses(tmp_path, key=KEY) as held:
        held.start_units(1)
        yield held


def test_a_unit_killed_again_and_again_has_all_that_was_written_and_nothing_that_was_cleared(own):
    movers = Movers(own)
    writer, reader = movers(), movers()
    kept: dict[int, list[dict[str, Any]]] = {}
    end, errors = threading.Event(), list[DataPlaneError]()

    def write() -> None:
        try:
            number = 0
            while not end.is_set():
                kept[number] = writer.write([arrays(number)])
                number += 1
        except DataPlaneError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    for count in (5, 10, 15):
        wait_for("values", lambda count=count: len(kept) >= count or errors or None, seconds=60)
        own.kill("queue.1")
        own.start_unit("queue.1")
    end.set()
    thread.join(90)
    assert not errors, errors
    numbers = list(kept)
    check(reader, [ref for number in numbers for ref in kept[number]], numbers)
    # A clear that meets no unit is done when it is back.
    gone, left = numbers[::2], numbers[1::2]
    own.kill("queue.1")
    writer.clear([ref["s/a"].index for number in gone for ref in kept[number]])
    own.start_unit("queue.1")
    wait_for("the clear", lambda: not writer._clearing or None, seconds=60)
    own.kill("queue.1")
    own.start_unit("queue.1")
    check(reader, [ref for number in left for ref in kept[number]], left)
    with pytest.raises(DataPlaneError, match="cannot fetch rows"):
        reader.read(list(kept[gone[0]][0].values()))
    writer.clear([ref["s/a"].index for number in left for ref in kept[number]])
    wait_for("the clear", lambda: not writer._clearing or None, seconds=60)
    movers.close()
    assert own.stop() == {"queue.1": 0}
    assert segment_bytes(own) == 0


def test_the_thread_count_of_torch_is_left_alone(movers):
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        mover = movers()
        check(mover, mover.write([arrays(1)]), [1])
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
