from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.dataplane.transferqueue.pieces import PIECE_BYTES, REQUEST_BYTES, requests_of

sizes = st.one_of(
    st.integers(0, 10), st.integers(0, 3 * REQUEST_BYTES), st.sampled_from([PIECE_BYTES, 2 * PIECE_BYTES, REQUEST_BYTES])
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), sizes), max_size=12))
def test_every_byte_is_in_one_request_and_no_request_is_too_large(blocks):
    covered: Counter[tuple[int, str]] = Counter()
    names: set[tuple[int, str]] = set()
    for request in requests_of(blocks):
        assert len(request.positions) == len(request.pieces) > 0
        assert sum(piece.end - piece.start for of in request.pieces for piece in of) <= REQUEST_BYTES
        for position, pieces in zip(request.positions, request.pieces, strict=True):
            assert [piece.name for piece in pieces] == request.names
            for piece in pieces:
                assert (position, piece.name) not in names
                names.add((position, piece.name))
                covered[position, piece.field] += piece.end - piece.start
    assert covered == {(p, field): size for p, block in enumerate(blocks) for field, size in block.items()}
    assert {name for _, name in names} >= {field for block in blocks for field in block}


def test_small_blocks_of_the_same_fields_travel_together():
    requests = requests_of([{"a": 5, "b": 1}] * 3 + [{"a": 5}] + [{}])
    assert [(request.positions, request.names) for request in requests] == [([0, 1, 2], ["a", "b"]), ([3], ["a"])]
