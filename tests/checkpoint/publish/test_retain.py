from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.checkpoint.publish.retain import to_drop


@st.composite
def chains(draw):
    """Versions of which each is a base or a patch on the one before it; some are gone already."""
    numbers = sorted(draw(st.sets(st.integers(0, 40), max_size=20)))
    previous = {n: draw(st.sampled_from([None, before])) for before, n in zip([None, *numbers], numbers, strict=False)}
    gone = draw(st.sets(st.sampled_from(numbers), max_size=3)) if numbers else set()
    return {n: p for n, p in previous.items() if n not in gone}


@given(chains(), st.integers(0, 5), st.none() | st.integers(1, 10), st.sets(st.integers(0, 40)))
def test_what_is_dropped_is_old_and_wanted_by_nobody(previous, keep_last, keep_every, protect):
    dropped = to_drop(previous, keep_last=keep_last, keep_every=keep_every, protect=protect)
    kept = previous.keys() - set(dropped)
    assert dropped == sorted(dropped, reverse=True), "a patch goes before its base"
    assert set(dropped) <= previous.keys() - protect
    assert len(kept) >= min(keep_last, len(previous))
    assert not any(keep_every and version % keep_every == 0 for version in dropped)
    for version in kept:
        before = previous[version]
        assert before not in previous or before in kept, "what a kept version is built on is kept"
    wanted = {*sorted(previous)[len(previous) - min(keep_last, len(previous)) :], *protect}
    wanted |= {version for version in previous if keep_every and version % keep_every == 0}
    for version in kept - wanted:
        assert any(previous[other] == version for other in kept), "nothing else is kept"


def test_the_chain_of_the_newest_stays():
    previous = {0: None, 1: 0, 2: 1, 3: None, 4: 3, 5: 4}
    assert to_drop(previous, keep_last=1) == [2, 1, 0]
    assert to_drop(previous, keep_last=1, protect={1}) == [2]
