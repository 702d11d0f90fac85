from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.plan.allocation import Node
from hpcrl.plan.ports import BLOCK, END, FIRST, candidates, choose_block, probe_busy
from hpcrl.run.errors import CheckFailed

RANGES = st.tuples(st.integers(1024, 65535), st.integers(1024, 65535)).map(lambda pair: (min(pair), max(pair)))


@given(st.text(max_size=8), st.lists(RANGES, max_size=3), st.integers(1, 3000))
def test_candidates_stay_outside_what_they_must(run_id, ephemeral, size):
    blocks = candidates(run_id, None, ephemeral, size)
    assert len(set(blocks)) == len(blocks)
    for first, end in blocks:
        assert first >= FIRST
        assert end <= END
        assert size <= end - first < size + BLOCK
        assert all(end <= low or first > high for low, high in ephemeral)
    assert candidates(run_id, 3, ephemeral, size) == blocks[:3]


@given(st.text(max_size=8), RANGES, RANGES)
def test_nodes_with_other_ephemeral_ranges_try_common_blocks_in_one_order(run_id, one, two):
    both = candidates(run_id, None, [one, two])
    for alone in (one, two):
        assert [block for block in candidates(run_id, None, [alone]) if block in set(both)] == list(both)


def test_runs_start_at_different_blocks():
    assert len({candidates(f"run{index}", 1, [(32768, 60999)]) for index in range(50)}) > 25


def node(name: str, **more) -> Node:
    return Node(name=name, address=name, **more)


def test_all_nodes_move_together_when_one_reports_busy():
    blocks = candidates("r", 4, [(32768, 60999)])
    free = [node("a"), node("b")]
    assert choose_block("r", free, 100) == blocks[0]
    assert choose_block("r", [node("a", busy=(blocks[0],)), node("b")], 100) == blocks[1]
    last = (blocks[1][0] + 5, blocks[1][0] + 6)
    assert choose_block("r", [node("a", busy=(blocks[0],)), node("b", busy=(last,))], 100) == blocks[2]


def test_many_processes_take_several_blocks_in_a_row():
    first, end = choose_block("r", [node("a")], 3 * BLOCK - 5)
    assert end - first == 3 * BLOCK


def test_no_block_left_names_the_nodes():
    with pytest.raises(CheckFailed, match="busy on some node: b;"):
        choose_block("r", [node("a"), node("b", busy=((0, 65536),))], 4)
    with pytest.raises(CheckFailed, match=r"ephemeral ranges \(1024-65535\)"):
        choose_block("r", [node("a", ephemeral=(1024, 65535))], 4)


def test_a_listening_port_makes_its_block_busy():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        block = (port, port + 1)
        assert probe_busy("127.0.0.1", [block]) == (block,)
    assert probe_busy("127.0.0.1", [block]) == ()
