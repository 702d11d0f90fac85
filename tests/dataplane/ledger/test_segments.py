"""An owner hears when a segment of shared memory holds nothing any more."""

from __future__ import annotations

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.ledger import Ledger


def put(drive, where: str, who: str = "make.0"):
    return drive.put(who, refs={"x": ops.Ref("shm", 10, where)})


def hear(drive, who: str) -> dict[str, int]:
    answer = drive.say(who, ops.Fill, stream="s", blocks={})
    assert isinstance(answer, ops.Granted)
    return answer.freed


def fill(drive, who: str, first: int, where: str):
    return drive.say(who, ops.Fill, stream="s", blocks={first: {"reward": ops.Ref("shm", 8, where)}})


def test_the_owner_is_told_with_its_next_answer_and_how_many_refs_there_were(drive):
    for where in ("a", "a", "b"):
        put(drive, where)
    drive.acknowledge("train.0", 0, 4)
    assert hear(drive, "make.1") == {}
    assert hear(drive, "make.0") == {"b": 1}
    assert hear(drive, "make.0") == {}
    drive.acknowledge("train.0", 2)
    assert put(drive, "c").freed == {"a": 2}
    assert drive.replay().state() == drive.ledger.state()


def test_a_restarted_ledger_tells_it_again(drive):
    put(drive, "a")
    drive.acknowledge("train.0", 0)
    assert hear(drive, "make.0") == {"a": 1}
    drive.ledger = Ledger.from_state(drive.rules, drive.ledger.state())
    assert hear(drive, "make.0") == {"a": 1}


def test_what_came_too_late_is_free_at_once(drive):
    put(drive, "a")
    assert fill(drive, "score.0", 0, "s0") == ops.Granted()
    assert fill(drive, "score.1", 0, "s1").freed == {"s1": 1}
    drive.acknowledge("train.0", 0)
    assert fill(drive, "score.1", 0, "s1").freed == {"s1": 2}
    assert hear(drive, "score.0") == {"s0": 1}


def test_a_new_life_hears_of_what_its_earlier_ones_left(drive):
    put(drive, "a")
    put(drive, "b")
    drive.acknowledge("train.0", 0)
    assert drive.hello("make.0").freed == {"a": 1}
    drive.acknowledge("train.0", 2)
    assert hear(drive, "make.0") == {"b": 1}
    assert drive.hello("make.0").freed == {"b": 1}
    assert drive.hello("make.0").freed == {}


def test_an_answer_that_is_given_again_tells_all_of_it(drive):
    put(drive, "a")
    drive.acknowledge("train.0", 0)
    op = ops.Fill(who="make.0", life=1, seq=9, oldest=9, stream="s", blocks={})
    assert drive.apply(op) == drive.apply(op) == ops.Granted({"a": 1})


def far(index: int) -> ops.Ref:
    return ops.Ref("tq", 10, "s/x", index=index)


def test_who_makes_values_in_storage_units_useless_is_told_which(drive):
    for index in (5, 6):
        drive.put(refs={"x": far(index)})
    assert drive.say("score.0", ops.Fill, stream="s", blocks={0: {"reward": far(7)}}) == ops.Granted()
    assert drive.say("score.1", ops.Fill, stream="s", blocks={0: {"reward": far(8)}}).values == [8]
    acknowledge = drive.acknowledge("train.0", 0)
    assert sorted(acknowledge.values) == [5, 7]
    assert drive.say("score.1", ops.Fill, stream="s", blocks={0: {"reward": far(9)}}).values == [9]
    assert drive.say("train.0", ops.Drop, stream="s", blocks=[2], reason="old").values == [6]
