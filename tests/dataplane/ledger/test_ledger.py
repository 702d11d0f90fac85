"""What every operation does, one after the other."""

from __future__ import annotations

import pytest

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.ledger import Ledger


def test_life_of_a_row(drive):
    drive.put(rows=3)
    assert drive.lease("train.0", "x", "reward") == ops.Leased()
    assert drive.take("score.0") == [0]
    drive.fill("score.0", 0)
    given = drive.lease("train.0", "x", "reward").blocks
    assert [(g.first, g.rows, [r.data for r in g.refs]) for g in given] == [(0, 3, [b"x", b"score.0"])]
    assert drive.say("train.0", ops.Trained, stream="s", blocks=[0], version=7) == ops.Granted()
    assert drive.figures()["untrained_rows"] == 0
    assert drive.figures()["rows"] == 3
    drive.acknowledge("train.0", 0)
    assert drive.figures()["rows"] == drive.figures()["bytes"] == 0
    assert [k for k in drive.kinds() if k != "life"] == [
        "produced", "leased", "filled", "leased", "trained", "acknowledged", "cleared",
    ]  # fmt: skip
    assert drive.events[-3].version == 7
    assert drive.events[-1].blocks == [(0, 3)]
    assert drive.ledger.events == len(drive.events)
    assert drive.replay().state() == drive.ledger.state()


def test_whole_blocks_oldest_first_up_to_the_rows_asked_for(drive):
    for rows in (3, 2, 1, 4):
        drive.put(rows=rows)
    assert drive.take("score.0", rows=7) == [0, 3, 5]
    assert drive.take("score.1", rows=3) == []
    assert drive.take("score.1", rows=4) == [6]


def test_the_same_operation_again_gets_the_same_answer_and_changes_nothing(drive):
    drive.put()
    drive.put()
    drive.hello("score.0")
    op = ops.Lease(who="score.0", life=1, seq=2, oldest=2, stream="s", columns=["x"], max_rows=2, seconds=9)
    first = drive.apply(op)
    assert drive.apply(op) == first
    assert [given.first for given in first.blocks] == [0]
    assert drive.figures()["groups"]["score"]["leased"] == 2
    drive.seqs["score.0"] = 2
    drive.fill("score.0", 0)
    assert drive.apply(op).kind == "superseded"


def test_an_older_life_is_fenced_and_its_rows_go_to_the_others_first(drive):
    for _ in range(3):
        drive.put()
    assert drive.take("score.0", rows=2) == [0]
    assert drive.take("score.1", rows=2) == [2]
    drive.hello("score.0")
    assert drive.take("score.1", rows=4) == [0, 4]
    late = ops.Fill(who="score.0", life=1, seq=9, oldest=9, stream="s", blocks={0: {"reward": ops.Ref("inline", 8)}})
    assert drive.apply(late).kind == "superseded"
    assert drive.figures()["rows_with"]["reward"] == 0
    assert drive.events[-2].kind == "given_back"
    assert drive.events[-2].blocks == [(0, 2)]


def test_who_has_not_said_hello_or_is_nobody_is_refused(drive):
    op = ops.Close(who="make.0", life=1, seq=1, oldest=1, stream="s")
    assert drive.apply(op).kind == "unknown"
    for who in ("make.2", "nobody.0", "make", ""):
        drive.lives[who] = 0
        assert drive.hello(who).kind == "schema"
    assert drive.log == []


def test_leases_run_out_unless_the_holder_says_a_word(drive):
    drive.put()
    drive.put()
    assert drive.take("score.0", rows=2, seconds=10) == [0]
    assert drive.take("score.1", rows=2, seconds=10) == [2]
    drive.sleep(20, "score.1")
    assert drive.take("score.1", rows=4) == [0]
    assert next(e for e in drive.events if e.kind == "expired").who == "score.0"
    assert drive.figures()["counters"]["expired"] == 2
    assert drive.replay().state() == drive.ledger.state()


def test_a_ledger_that_was_stopped_takes_no_lease_away(drive):
    drive.put()
    assert drive.take("score.0", seconds=5) == [0]
    drive.now += 3600
    assert drive.ledger.due(drive.now) == []
    assert 3 < drive.ledger.next_due() <= 4
    drive.ledger = Ledger.from_state(drive.rules, drive.ledger.state())
    drive.now += 3600
    assert drive.ledger.due(drive.now) == []
    drive.sleep(4)
    assert drive.take("score.1") == []
    drive.sleep(4)
    assert drive.take("score.1") == [0]


def test_the_first_to_fill_wins_and_nobody_is_told_off(drive):
    drive.put()
    assert drive.take("score.0", seconds=5) == [0]
    drive.sleep(8)
    assert drive.take("score.1", seconds=5) == [0]
    assert drive.fill("score.0", 0) == ops.Granted()
    assert drive.fill("score.1", 0) == ops.Granted()
    assert drive.lease("train.0", "reward").blocks[0].refs[0].data == b"score.0"
    drive.acknowledge("train.0", 0)
    assert drive.fill("score.1", 0) == ops.Granted()
    assert drive.take("score.1") == []
    assert drive.kinds().count("filled") == 1


def test_the_final_reader_that_lost_its_lease_must_not_count_its_work(drive):
    drive.put()
    assert drive.take("train.0", seconds=5) == [0]
    drive.sleep(8)
    # Nobody has it: the work is good.
    assert drive.say("train.0", ops.Trained, stream="s", blocks=[0], version=1) == ops.Granted()
    assert drive.take("train.1") == []
    drive.acknowledge("train.0", 0)
    drive.put()
    assert drive.take("train.0", seconds=5) == [2]
    drive.sleep(8)
    assert drive.take("train.1", seconds=50) == [2]
    before = drive.ledger.state()
    assert drive.say("train.0", ops.Trained, stream="s", blocks=[2], version=1).kind == "lost"
    assert drive.acknowledge("train.0", 2).kind == "lost"
    assert drive.say("train.0", ops.Drop, stream="s", blocks=[2], reason="old").kind == "lost"
    assert drive.ledger.state() == before
    assert drive.acknowledge("train.1", 2) == ops.Granted()
    assert drive.acknowledge("train.0", 2) == ops.Granted()
    assert drive.say("train.0", ops.Trained, stream="s", blocks=[2], version=1).kind == "lost"
    assert drive.kinds().count("cleared") == 2


def test_what_a_checkpoint_holds_is_acknowledged_by_the_next_life_and_the_rest_comes_again(drive):
    for _ in range(3):
        drive.put()
    assert drive.take("train.0", rows=6) == [0, 2, 4]
    drive.say("train.0", ops.Trained, stream="s", blocks=[0, 2], version=3)
    assert drive.figures()["untrained_rows"] == 2
    drive.hello("train.0")
    drive.acknowledge("train.0", 0, 1, 99)
    assert drive.figures()["untrained_rows"] == drive.figures()["rows"] == 4
    assert drive.take("train.0", rows=6) == [2, 4]
    assert [k for k in drive.kinds() if k not in ("produced", "leased", "trained")][2:] == [
        "life", "given_back", "acknowledged", "cleared",
    ]  # fmt: skip


def test_one_who_looks_on_acknowledges_and_nothing_is_cleared(drive):
    drive.put()
    assert drive.take("watch.0") == [0]
    assert drive.take("watch.1") == []
    drive.acknowledge("watch.0", 0)
    assert drive.take("watch.0") == []
    assert drive.figures()["groups"]["watch"] == {"unread": 0, "leased": 0, "done": 2}
    assert drive.take("train.0") == [0]


def test_given_back_rows_go_to_whoever_asks_next(drive):
    drive.put()
    drive.put()
    assert drive.take("train.0", rows=2) == [0]
    drive.say("train.0", ops.GiveBack, stream="s", blocks=[0, 2, 77])
    assert drive.take("train.1", rows=4) == [0, 2]
    drive.say("train.0", ops.GiveBack, stream="s", blocks=[0])
    assert drive.take("train.0") == []


def test_drops_are_counted_by_reason_and_free_their_room(make_driver):
    drive = make_driver(capacity_rows=4)
    drive.put(rows=2)
    drive.put(rows=2)
    assert isinstance(drive.put(rows=2), ops.Wait)
    assert drive.take("train.0", rows=2) == [0]
    drive.say("train.0", ops.Drop, stream="s", blocks=[0], reason="too old")
    assert drive.put(rows=2) == ops.Granted()
    drive.say("train.0", ops.Drop, stream="s", blocks=[2], reason="too old")
    assert drive.figures()["counters"]["dropped"] == {"too old": 4}
    assert [e.reason for e in drive.events if e.kind == "dropped"] == ["too old"] * 2
    assert drive.take("train.1") == [4]


def test_the_end_waits_for_closers_and_for_what_others_hold(drive):
    drive.put()
    drive.put()
    drive.close("make.0")
    assert drive.take("score.0", rows=2) == [0]
    assert drive.take("score.1", rows=2) == [2]
    assert not drive.lease("score.0").ended
    drive.close("make.1")
    # Each has a block that the other could still get.
    assert not drive.lease("score.0").ended
    drive.fill("score.0", 0)
    assert not drive.lease("score.0").ended
    assert drive.lease("score.1").ended
    drive.fill("score.1", 2)
    assert drive.lease("score.0").ended
    assert drive.take("train.0", "reward", rows=4) == [0, 2]
    assert not drive.lease("train.1", "reward").ended
    drive.close("score.0", "score.1")
    assert not drive.lease("train.1", "reward").ended
    drive.say("train.0", ops.Trained, stream="s", blocks=[0, 2], version=1)
    assert drive.lease("train.1", "reward").ended


def test_a_closed_stream_stays_closed_in_a_new_life_until_that_puts(drive):
    drive.put()
    drive.close("make.0", "make.1")
    assert drive.put().kind == "closed"
    drive.hello("make.0")
    drive.take("watch.0")
    assert drive.lease("watch.0").ended
    assert drive.put() == ops.Granted()
    assert drive.take("watch.0") == [2]
    assert not drive.lease("watch.0").ended
    drive.close("make.0")
    assert drive.lease("watch.0").ended


@pytest.mark.parametrize(
    ("who", "kind", "fields"),
    [
        ("make.0", ops.Put, {"stream": "t", "first": 0, "rows": 1, "refs": {}, "bytes": 1}),
        ("make.0", ops.Put, {"stream": "s", "first": 0, "rows": 1, "refs": {}, "bytes": 1}),
        ("make.0", ops.Put, {"stream": "s", "first": 0, "rows": 5, "refs": {"x": ops.Ref("inline", 1)}, "bytes": 1}),
        ("make.0", ops.Put, {"stream": "s", "first": 0, "rows": 0, "refs": {"x": ops.Ref("inline", 1)}, "bytes": 1}),
        ("make.0", ops.Put, {"stream": "s", "first": 0, "rows": 1, "refs": {"x": ops.Ref("inline", 1)}, "bytes": 1001}),
        ("score.0", ops.Put, {"stream": "s", "first": 0, "rows": 1, "refs": {"x": ops.Ref("inline", 1)}, "bytes": 1}),
        ("train.0", ops.Fill, {"stream": "s", "blocks": {50: {"reward": ops.Ref("inline", 1)}}}),
        ("score.0", ops.Fill, {"stream": "s", "blocks": {50: {"x": ops.Ref("inline", 1)}}}),
        ("make.0", ops.Lease, {"stream": "s", "columns": ["x"], "max_rows": 4, "seconds": 1}),
        ("score.0", ops.Lease, {"stream": "s", "columns": ["y"], "max_rows": 4, "seconds": 1}),
        ("score.0", ops.Lease, {"stream": "s", "columns": [], "max_rows": 4, "seconds": 1}),
        ("score.0", ops.Trained, {"stream": "s", "blocks": [50], "version": 1}),
        ("make.0", ops.Acknowledge, {"stream": "s", "blocks": [50]}),
        ("train.0", ops.Close, {"stream": "s"}),
        ("score.0", ops.Announce, {"feedback": "gate", "value": "{}"}),
        ("score.0", ops.AskNewest, {"feedback": "gates"}),
        ("score.0", ops.AskDepth, {"stream": "t"}),
        ("score.0", ops.AskHeld, {"stream": "t"}),
    ],
)
def test_what_is_against_the_rules_is_refused_and_changes_nothing(drive, who, kind, fields):
    drive.put(first=50)
    drive.take("score.0")
    drive.hello(who)
    before = drive.ledger.state()
    assert drive.say(who, kind, **fields).kind == "schema"
    assert drive.ledger.state() == before


def test_a_row_id_is_used_once(drive):
    drive.put(first=10)
    assert drive.put(first=10).kind == "schema"


def test_feedback_keeps_the_newest_and_goes_on_over_lives_and_restarts(drive):
    drive.say("train.0", ops.Announce, feedback="gate", value="1")
    drive.hello("train.0")
    drive.ledger = Ledger.from_state(drive.rules, drive.ledger.state())
    assert drive.say("train.0", ops.Announce, feedback="gate", value="2") == ops.Newest({"train.0": (2, "2")})
    assert drive.say("watch.0", ops.AskNewest, feedback="gate") == ops.Newest({"train.0": (2, "2")})


def test_anybody_may_ask(drive):
    drive.put()
    drive.put()
    ask = {"who": "cli", "life": 0, "seq": 1, "oldest": 1}
    assert drive.apply(ops.AskHeld(**ask, stream="s")) == ops.Held([0, 2])
    depths = drive.apply(ops.AskDepth(**ask))
    assert depths.streams["s"]["rows"] == 4
    assert depths.streams["s"]["rows_with"] == {"x": 4, "reward": 0}
    assert ops.decode_answer(ops.encode(depths)) == depths


def test_why_a_row_waits(drive):
    drive.put()

    def why(row: int) -> str:
        return "\n".join(drive.say("cli", ops.AskWhy, row=row).lines)

    drive.lives["cli"] = 1
    assert "put by make.0 0 s ago" in why(1)
    assert "lack column 'reward', owed by 'score'" in why(1)
    drive.take("score.0")
    drive.now += 3
    assert "held by score.0" in why(0)
    drive.fill("score.0", 0)
    assert "wait for group 'train'" in why(0)
    drive.take("train.0")
    drive.say("train.0", ops.Trained, stream="s", blocks=[0], version=4)
    assert "trained by version 4, held by train.0" in why(0)
    drive.acknowledge("train.0", 0)
    assert "not in any stream" in why(0)


def test_news_of_streams_in_which_something_may_be_had(drive):
    drive.put()
    assert drive.ledger.take_news() == {"s"}
    assert drive.ledger.take_news() == set()
    drive.take("score.0", seconds=5)
    assert drive.ledger.take_news() == set()
    drive.sleep(8)
    assert drive.ledger.take_news() == {"s"}
    drive.acknowledge("train.0", 0)
    assert drive.ledger.take_news() == {"s"}
    drive.close("make.0")
    assert drive.ledger.take_news() == {"s"}


def test_a_snapshot_is_adopted_by_another_ledger(drive):
    drive.put(rows=3)
    drive.put(rows=1)
    drive.take("score.0", rows=3)
    drive.fill("score.0", 0)
    live = list(drive.ledger.live_refs())
    again = Ledger(drive.rules)
    events = again.adopt(live, 5.0)
    assert [e.kind for e in events] == ["produced"] * 2
    assert again.events == 2
    assert list(again.live_refs()) == live
    drive.ledger, drive.lives = Ledger.from_state(drive.rules, again.state()), type(drive.lives)()
    drive.hello("score.0")
    drive.hello("train.0")
    assert drive.take("score.0") == [3]
    assert drive.take("train.0", "reward") == [0]
    with pytest.raises(ValueError, match="do not fit"):
        again.adopt(live, 5.0)


def test_only_the_ledger_itself_expires_leases(drive):
    drive.put()
    drive.take("score.0")
    op = ops.Expire(who="score.0", life=1, seq=0, oldest=0, stream="s")
    assert ops.decode_logged(ops.encode(op)) == op
    with pytest.raises(ops.msgspec.ValidationError):
        ops.decode_op(ops.encode(op))
