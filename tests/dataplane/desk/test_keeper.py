"""What the desk keeps, and in which order, whenever it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.dataplane.desk.keeper import LedgerKeeper
from hpcrl.dataplane.history.reader import HistoryReader
from hpcrl.dataplane.history.writer import HistoryWriter
from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.rules import rules_of
from hpcrl.dataplane.wal import WriteAheadLog

REF = ops.Ref("inline", 1, data=b"x")


@pytest.fixture
def keep(make_bench, tmp_path: Path):
    bench = make_bench("memory")
    rules, kept = rules_of(bench.recipe, bench.processes), []

    def start() -> LedgerKeeper:
        for one in kept:
            one.close()
        kept[:] = [LedgerKeeper(rules, tmp_path, tmp_path / "history", clock=lambda: 1000.0)]
        return kept[0]

    start.stream = bench.name  # type: ignore[attr-defined]
    yield start
    kept[0].close()


def say(keeper: LedgerKeeper, op: ops.AnyOp) -> ops.Answer:
    return keeper.apply(op, ops.encode(op))


def hello() -> ops.Hello:
    return ops.Hello(who="make.0", life=256, seq=1, oldest=1)


def put(stream: str, seq: int) -> ops.Put:
    refs = dict.fromkeys(("index", "tokens", "logprobs", "text", "good"), REF)
    return ops.Put(who="make.0", life=256, seq=seq, oldest=seq, stream=stream, first=seq, rows=1, refs=refs, bytes=5)


def history(folder: Path) -> list[tuple[int, str]]:
    return [(number, event.kind) for number, event in HistoryReader(folder / "history").read()]


def test_an_operation_is_in_the_log_before_its_events_are_in_the_history(keep, monkeypatch):
    order: list[str] = []
    append, note = WriteAheadLog.append, HistoryWriter.append

    def logged(self: WriteAheadLog, *records: bytes) -> None:
        append(self, *records)
        order.append("log")

    def noted(self: HistoryWriter, *arguments) -> None:
        note(self, *arguments)
        order.append("history")

    keeper = keep()
    monkeypatch.setattr(WriteAheadLog, "append", logged)
    monkeypatch.setattr(HistoryWriter, "append", noted)
    say(keeper, hello())
    say(keeper, put(keep.stream, 2))
    assert order == ["log", "history"] * 2


def test_what_the_log_did_not_take_is_not_in_the_history_and_never_happened(keep, monkeypatch, tmp_path):
    keeper = keep()
    say(keeper, hello())

    def full(*_: object) -> None:
        raise DataPlaneError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "append", full)
        with pytest.raises(DataPlaneError, match="no room"):
            say(keeper, put(keep.stream, 2))
    again = keep()
    assert again.ledger.figures(keep.stream)[keep.stream]["rows"] == 0
    assert say(again, put(keep.stream, 2)) == ops.Granted()
    again.close()
    assert history(tmp_path) == [(0, "life"), (1, "produced")]


def test_events_that_a_kill_kept_from_the_history_are_made_again_once(keep, monkeypatch, tmp_path):
    keeper = keep()
    say(keeper, hello())
    with monkeypatch.context() as patched:
        patched.setattr(HistoryWriter, "append", lambda *_: None)
        say(keeper, put(keep.stream, 2))
    again = keep()
    assert again.ledger.figures(keep.stream)[keep.stream]["rows"] == 1
    say(again, put(keep.stream, 3))
    again.close()
    assert history(tmp_path) == [(0, "life"), (1, "produced"), (2, "produced")]
