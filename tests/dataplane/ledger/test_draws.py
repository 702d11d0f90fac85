"""Sets that are shared out over data-parallel ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.dataplane.ledger import ops
from hpcrl.dataplane.ledger.draws import balance, block_cost, block_tokens
from hpcrl.dataplane.ledger.ledger import Ledger
from hpcrl.dataplane.ledger.records import Block


def firsts(leased: ops.Leased) -> list[int]:
    return [given.first for given in leased.blocks]


def block(number: int, tokens: list[int]) -> Block:
    return Block(number, len(tokens), number, 0, "", 0.0, {}, ops.Labels(tokens=tokens))


def test_shares_of_one_set_are_apart_and_the_same_for_whoever_asks(drive):
    for tokens in (8, 1, 1, 6, 9):
        drive.put(rows=1, tokens=tokens)
    one, other = drive.draw("train.0", 0, 0), drive.draw("train.1", 0, 1)
    assert (firsts(one), firsts(other)) == ([0], [1, 2, 3])
    assert one.fixed
    # A tensor-parallel peer asks for the same.
    assert firsts(drive.draw("train.1", 0, 0)) == [0]
    assert drive.take("train.0") == [4]


def test_a_set_waits_for_all_its_rows_and_takes_the_rest_at_the_end(drive):
    drive.put(rows=2)
    assert drive.draw("train.0", 0, 0) == ops.Leased()
    drive.put(rows=2)
    drive.put(rows=1)
    assert len(firsts(drive.draw("train.0", 0, 0)) + firsts(drive.draw("train.1", 0, 1))) == 2
    assert drive.draw("train.0", 1, 0) == ops.Leased()
    drive.close("make.0", "make.1")
    rest = drive.draw("train.0", 1, 0)
    assert (firsts(rest), rest.ended) == ([4], False)
    empty = drive.draw("train.1", 1, 1)
    assert (empty.blocks, empty.fixed, empty.ended) == ([], True, False)
    assert drive.draw("train.0", 2, 0) == ops.Leased(ended=True)
    assert drive.replay().state() == drive.ledger.state()


def test_a_set_keeps_under_the_limit_of_tokens(drive):
    for tokens in (5, 5, 5, 5):
        drive.put(rows=1, tokens=tokens)
    assert firsts(drive.draw("train.0", 0, 0, max_tokens=6)) == [0]
    assert firsts(drive.draw("train.1", 0, 1, max_tokens=6)) == [1]
    assert firsts(drive.draw("train.0", 1, 0, rows=2, max_tokens=2)) == [2]


def test_a_draw_lives_while_one_of_its_members_does(drive):
    for _ in range(4):
        drive.put(rows=1)
    drive.draw("train.0", 0, 0)
    drive.draw("train.1", 0, 1)
    drive.sleep(40, "train.1")
    assert drive.figures()["groups"]["train"]["leased"] == 4
    # Who comes back finds its share again, as does its next life.
    assert firsts(drive.draw("train.0", 0, 0)) == [0, 2]
    drive.hello("train.0")
    assert firsts(drive.draw("train.0", 0, 0)) == [0, 2]
    drive.hello("train.0")
    drive.hello("train.1")
    assert drive.figures()["groups"]["train"] == {"unread": 4, "leased": 0, "done": 0}
    assert drive.events[-1].blocks == [(0, 1), (2, 1), (1, 1), (3, 1)]
    assert firsts(drive.draw("train.0", 0, 0, shares=1)) == [0, 1, 2, 3]


def test_one_member_trains_and_acknowledges_for_all(drive):
    for _ in range(4):
        drive.put(rows=1)
    drive.draw("train.0", 0, 0)
    drive.draw("train.1", 0, 1)
    assert drive.say("train.0", ops.Trained, stream="s", blocks=[0, 1, 2, 3], version=1) == ops.Granted()
    drive.ledger = Ledger.from_state(drive.rules, drive.ledger.state())
    assert drive.acknowledge("train.0", 0, 1, 2, 3) == ops.Granted()
    assert drive.figures()["rows"] == 0
    assert drive.draw("train.1", 0, 1).kind == "lost"
    drive.put(rows=4)
    assert firsts(drive.draw("train.1", 1, 1)) in ([4], [])


def test_a_draw_that_everybody_gives_back_is_free(drive):
    drive.put(rows=4)
    drive.draw("train.0", 0, 0)
    drive.draw("train.1", 0, 1)
    drive.say("train.0", ops.GiveBack, stream="s", blocks=[0])
    assert drive.take("train.0") == []
    drive.say("train.1", ops.GiveBack, stream="s", blocks=[0])
    assert drive.take("train.0") == [0]


def test_what_cannot_be_shared_is_refused(drive):
    drive.put(rows=4)
    assert drive.draw("train.0", 0, 2).kind == "schema"
    assert drive.draw("train.0", 0, 0, rows=0).kind == "schema"
    drive.draw("train.0", 0, 0)
    assert drive.draw("train.1", 0, 1, shares=3).kind == "schema"


lengths = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), max_size=30)


@given(lengths, st.integers(1, 6), st.sampled_from([0.0, 0.05]))
def test_every_block_has_one_share_and_no_share_costs_much_more_than_it_must(tokens, shares, quadratic):
    blocks = [block(number, item) for number, item in enumerate(tokens)]
    parts = balance(blocks, shares, max_tokens=0, quadratic=quadratic)
    assert sorted(b.first for part in parts for b in part) == list(range(len(blocks)))
    assert all([b.first for b in part] == sorted(b.first for b in part) for part in parts)
    costs = [sum(block_cost(b, quadratic) for b in part) for part in parts]
    dearest = max((block_cost(b, quadratic) for b in blocks), default=0)
    assert max(costs) <= sum(costs) / shares + dearest + 1e-6


@given(lengths, st.integers(1, 6), st.integers(1, 100))
def test_the_limit_of_tokens_holds_and_what_is_left_out_is_the_newest(tokens, shares, limit):
    blocks = [block(number, item) for number, item in enumerate(tokens)]
    parts = balance(blocks, shares, max_tokens=limit, quadratic=0.0)
    taken = sorted(b.first for part in parts for b in part)
    assert taken == list(range(len(taken)))
    if len(taken) > 1:
        assert all(sum(map(block_tokens, part)) <= limit for part in parts)
    assert bool(taken) == bool(blocks)


def test_attention_costs_more_than_its_length():
    blocks = [block(0, [10]), block(1, [5]), block(2, [5]), block(3, [5])]
    assert [[b.first for b in p] for p in balance(blocks, 2, max_tokens=0, quadratic=0.0)] == [[0, 3], [1, 2]]
    assert [[b.first for b in p] for p in balance(blocks, 2, max_tokens=0, quadratic=1.0)] == [[0], [1, 2, 3]]
