"""Which blocks a new attempt takes over: never one that was trained, never half a group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.snapshot.layout import BlockInfo
from hpcrl.dataplane.snapshot.restore import Start, plan_restore


def block(first: int, prompts: list[int], oldest: int = 8, newest: int = 9, columns: str = "a", stream: str = "s") -> BlockInfo:
    rows = max(1, len(prompts))
    return BlockInfo(stream, first, rows, frozenset(columns), Labels(prompts, [oldest] * rows, [newest] * rows))


START = Start(
    trained_below=10,
    trained_beyond=frozenset({12}),
    version=10,
    version_lag=2,
    created={"s": frozenset("a")},
    group_rows={"s": 2},
)


@pytest.mark.parametrize(
    ("one", "reason", "why"),
    [
        (block(0, [9, 9]), "trained", "prompt 9 was trained"),
        (block(0, [12, 12]), "trained", "prompt 12 was trained"),
        (block(0, [10, 10], oldest=7), "too old", "policy version 7 began a row, 3 before 10; the limit is 2"),
        (block(0, [10, 10], newest=11), "lost policy", "policy version 11 made a row, and training goes on from 10"),
        (block(0, [10, 10], oldest=11, newest=10), "lost policy", "policy version 11"),
        (block(0, [10, 10], columns="b"), "incomplete block", "its column 'a' was not saved"),
        (block(0, []), "no prompt", "nobody can tell whether it was trained"),
        (block(0, [10]), "incomplete group", "prompt 10 has 1 of 2 rows"),
        (block(0, [10, 10, 10]), "incomplete group", "prompt 10 has 3 of 2 rows"),
        (block(0, [9, 9], oldest=0), "trained", "prompt 9"),
    ],
)
def test_each_reason(one, reason, why):
    plan = plan_restore([one], START)
    assert plan.adopt == ()
    (left,) = plan.left_out
    assert (left.block, left.reason) == (one, reason)
    assert why in left.why
    assert plan.rows_left_out() == {reason: one.rows}


def test_a_row_without_a_token_has_no_version():
    one = BlockInfo("s", 0, 2, frozenset("a"), Labels([10, 10], [-1, 9], [-1, 9]))
    assert plan_restore([one], START).adopt == (one,)


def test_what_is_taken_over():
    blocks = [block(0, [10, 10]), block(5, [9, 9]), block(10, [11]), block(20, [11], oldest=10, newest=10), block(30, [13])]
    plan = plan_restore(blocks, START)
    assert [one.first for one in plan.adopt] == [0, 10, 20]
    assert plan.prompts("s") == {10, 11}
    assert plan.firsts("s") == {0, 10, 20}
    assert plan.firsts("t") == frozenset()
    assert plan.rows_left_out() == {"trained": 2, "incomplete group": 1}


def test_one_that_is_left_out_takes_those_it_shared_prompts_with():
    chain = [block(0, [20, 21]), block(10, [21, 22]), block(20, [22, 23]), block(30, [30, 30]), block(40, [23]), block(50, [9])]
    plan = plan_restore(chain, START)
    assert [one.first for one in plan.adopt] == [30]
    assert plan.rows_left_out() == {"incomplete group": 7, "trained": 1}
    ring = [block(0, [20, 21]), block(10, [21, 22]), block(20, [22, 20])]
    assert len(plan_restore(ring, START).adopt) == 3


def test_a_stream_without_groups_or_labels_is_taken_as_it_is():
    blocks = [block(0, [], stream="t"), block(5, [10], stream="t"), BlockInfo("t", 9, 3, frozenset(), Labels())]
    assert list(plan_restore(blocks, START).adopt) == blocks


INFO = st.builds(
    lambda first, prompts, oldest, span, stream: block(first, prompts, oldest, oldest + span, stream=stream),
    st.integers(0, 10**6),
    st.lists(st.integers(5, 16), max_size=4),
    st.integers(6, 10),
    st.integers(0, 2),
    st.sampled_from(["s", "t"]),
)


@given(st.lists(INFO, max_size=30))
def test_nothing_trained_nor_stale_and_every_group_whole(blocks):
    plan = plan_restore(blocks, START)
    assert Counter(map(id, plan.adopt)) + Counter(id(left.block) for left in plan.left_out) == Counter(map(id, blocks))
    for one in plan.adopt:
        assert not {p for p in one.labels.prompts if p < 10 or p == 12}
        assert all(v >= 8 for v in one.labels.first_versions)
        assert all(v <= 10 for v in one.labels.last_versions)
    rows = Counter(p for one in plan.adopt if one.stream == "s" for p in one.labels.prompts)
    assert set(rows.values()) <= {2}
