"""The writing itself, in this process."""

import msgspec
import pytest

from hpcrl.dataplane.snapshot.rows import open_rows
from hpcrl.dataplane.trajectories import agent
from hpcrl.dataplane.trajectories.keeper import _saved
from hpcrl.dataplane.trajectories.layout import STREAM
from hpcrl.dataplane.trajectories.request import Done, Failed, Request, decode_block, decode_request, encode


@pytest.fixture
def request_of(tmp_path):
    return lambda **fields: Request(folder=str(tmp_path / "t"), run_id="r", attempt=1, after=0, **fields)


def firsts(path):
    with open_rows(path) as rows:
        return [block.first for block in rows.tables[STREAM.name].blocks()]


def test_a_request_comes_over_as_it_was(request_of, group):
    blocks = [_saved(4, group(1), 2, [0.0, 1.0]), _saved(4, group(2), 3, [0.0] * 3)]
    asked = request_of(first_step=4, last_step=4, blocks=2)
    first, *rest = [bytes(message) for message in encode(asked, blocks)]
    assert decode_request(first) == asked
    for got, block in zip(map(decode_block, rest), blocks, strict=True):
        assert (got.stream, got.first, got.rows, got.labels) == (block.stream, block.first, block.rows, block.labels)
        assert {name: data.tobytes() for name, data in got.columns.items()} == {
            name: data.tobytes() for name, data in block.columns.items()
        }
    with pytest.raises(msgspec.MsgspecError):
        decode_request(b"x")


def test_rows_whose_answer_was_lost_are_not_doubled(request_of, group, tmp_path):
    one, two = _saved(1, group(1), 3, [0.0] * 3), _saved(2, group(2), 3, [0.0] * 3)
    first = agent.answer(request_of(first_step=1, last_step=1), [one])
    assert isinstance(first, Done)
    for _ in range(2):
        assert isinstance(agent.answer(request_of(first_step=2, last_step=2, onto=1), [two]), Done)
    assert firsts(tmp_path / "t" / "step-00000001.h5") == [1000, 2000]
    with open_rows(tmp_path / "t" / "step-00000001.h5") as rows:
        assert {name: rows.about[name] for name in ("run_id", "attempt", "first_step", "last_step")} == {
            "run_id": "r",
            "attempt": 1,
            "first_step": 1,
            "last_step": 2,
        }


def test_a_file_that_is_damaged_meanwhile_is_left_and_the_next_one_begun(request_of, group, tmp_path):
    agent.answer(request_of(first_step=1, last_step=1), [_saved(1, group(1), 3, [0.0] * 3)])
    path = tmp_path / "t" / "step-00000001.h5"
    path.write_bytes(path.read_bytes()[:100])
    done = agent.answer(request_of(first_step=2, last_step=2, onto=1), [_saved(2, group(2), 3, [0.0] * 3)])
    assert isinstance(done, Done)
    assert done.first_step == 2
    assert firsts(tmp_path / "t" / "step-00000002.h5") == [2000]
    assert path.stat().st_size == 100


def test_a_full_disk_is_told_and_leaves_what_was_there(request_of, group, tmp_path, monkeypatch):
    agent.answer(request_of(first_step=1, last_step=1), [_saved(1, group(1), 3, [0.0] * 3)])
    from hpcrl.dataplane.snapshot import sink

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink.os, "pwrite", full)
    failed = agent.answer(request_of(first_step=2, last_step=2, onto=1), [_saved(2, group(2), 3, [0.0] * 3)])
    assert isinstance(failed, Failed)
    assert "No space left on device" in failed.error
    assert firsts(tmp_path / "t" / "step-00000001.h5") == [1000]
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["began.json", "step-00000001.h5"]
