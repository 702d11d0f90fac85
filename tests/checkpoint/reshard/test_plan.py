from __future__ import annotations

import itertools
import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.checkpoint.reshard.box import Box, byte_ranges
from hpcrl.checkpoint.reshard.layout import Layout, Mesh, Piece, ReshardError, TensorLayout, spread
from hpcrl.checkpoint.reshard.plan import plan, plan_rank

SIZES = st.sampled_from([1, 2, 3, 4])
ITEM = 4


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    count = draw(st.integers(1, 4))
    return {f"t{i}": tuple(draw(st.lists(st.integers(0, 7), max_size=3))) for i in range(count)}


@st.composite
def layouts(draw: st.DrawFn, shapes: dict[str, tuple[int, ...]]) -> Layout:
    """Any mix of FSDP, tensor, expert and pipeline parallelism and replication, each tensor cut in its own way."""
    mesh = Mesh(("pp", draw(SIZES)), ("dp", draw(SIZES)), ("tp", draw(SIZES)))
    tensors = {}
    for name, shape in shapes.items():
        only = (("pp", draw(st.integers(0, dict(mesh.dims)["pp"] - 1))),) if draw(st.booleans()) else ()
        free = [dim for dim, _ in mesh.dims if dim not in dict(only)]
        chosen = draw(st.permutations(free))[: draw(st.integers(0, len(free)))] if shape else []
        cuts = tuple((dim, draw(st.integers(0, len(shape) - 1))) for dim in chosen)
        tensors[name] = spread(mesh, shape, ITEM, cuts, only)
    return Layout(mesh.size, tensors)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Layout, Layout]:
    wanted = draw(shapes())
    return draw(layouts(wanted)), draw(layouts(wanted))


def shards(layout: Layout, whole: dict[str, np.ndarray]) -> dict[tuple[int, str], np.ndarray]:
    return {
        (rank, name): np.array(whole[name][piece.box.slices], order="C")
        for name, held in layout.tensors.items()
        for piece in held.pieces
        for rank in piece.ranks
    }


def example(layout: Layout) -> dict[str, np.ndarray]:
    starts = itertools.count(1, 10_000)
    return {
        name: np.arange(math.prod(held.shape), dtype=np.int32).reshape(held.shape) + next(starts)
        for name, held in layout.tensors.items()
    }


@settings(max_examples=60)
@given(pair=pairs())
def test_every_rank_gets_every_element_of_its_shards_once_and_nothing_else(pair: tuple[Layout, Layout]) -> None:
    source, target = pair
    whole = example(source)
    have, want = shards(source, whole), shards(target, whole)
    for rank, copies in plan(source, target):
        assert copies == plan_rank(source, target, rank)
        mine = {name: shard for (holder, name), shard in want.items() if holder == rank}
        got = {name: np.zeros_like(shard) for name, shard in mine.items()}
        times = {name: np.zeros(shard.shape, int) for name, shard in mine.items()}
        for copy in copies:
            part = have[copy.source, copy.tensor][copy.source_box.slices]
            assert part.size > 0
            got[copy.tensor][copy.target_box.slices] = part
            times[copy.tensor][copy.target_box.slices] += 1
            # The same from the bytes of the shard as they lie in a file.
            held = have[copy.source, copy.tensor]
            assert held.shape == copy.source_shape
            read = b"".join(held.tobytes()[start:stop] for start, stop in copy.ranges(ITEM))
            assert read == part.tobytes()
        for name, shard in mine.items():
            np.testing.assert_array_equal(got[name], shard)
            assert (times[name] == 1).all()


@settings(max_examples=200)
@given(data=st.data())
def test_byte_ranges_are_those_of_the_box_in_order_and_as_few_as_can_be(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    box = Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))
    itemsize = data.draw(st.sampled_from([1, 2, 4]))
    flat = np.arange(math.prod(shape)).reshape(shape)[box.slices].reshape(-1)
    ranges = byte_ranges(box, shape, itemsize)
    covered = [byte for start, stop in ranges for byte in range(start, stop)]
    assert covered == [int(element) * itemsize + byte for element in flat for byte in range(itemsize)]
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(ranges))


@settings(max_examples=50)
@given(length=st.integers(0, 40), count=st.integers(1, 9))
def test_pieces_are_those_of_torch_chunk(length: int, count: int) -> None:
    torch = pytest.importorskip("torch")
    held = spread(Mesh(("dp", count)), (length,), ITEM, (("dp", 0),))
    pieces = [len(piece) for piece in torch.arange(length).chunk(count)]
    assert [piece.box.shape[0] for piece in held.pieces] == [size for size in pieces if size]


def test_cuts_apply_in_their_order() -> None:
    mesh = Mesh(("dp", 2), ("tp", 2))
    tensor_first = spread(mesh, (8,), ITEM, (("tp", 0), ("dp", 0)))
    assert {piece.ranks[0]: piece.box.start[0] for piece in tensor_first.pieces} == {0: 0, 2: 2, 1: 4, 3: 6}
    data_first = spread(mesh, (8,), ITEM, (("dp", 0), ("tp", 0)))
    assert {piece.ranks[0]: piece.box.start[0] for piece in data_first.pieces} == {0: 0, 1: 2, 2: 4, 3: 6}


def test_replicas_share_the_load() -> None:
    replicated = Mesh(("replica", 4), ("dp", 2))
    source = Layout(8, {f"t{i}": spread(replicated, (64, 4), ITEM, (("dp", 0),)) for i in range(8)})
    target = Layout(8, {name: spread(Mesh(("tp", 8)), (64, 4), ITEM, (("tp", 0),)) for name in source.tensors})
    sent: Counter[int] = Counter()
    for _, copies in plan(source, target):
        for copy in copies:
            sent[copy.source] += copy.source_box.size
    assert set(sent) == set(range(8))
    assert max(sent.values()) == min(sent.values())


def test_the_nearest_replica_gives() -> None:
    source = Layout(4, {"t": spread(Mesh(("replica", 4)), (8,), ITEM)})
    target = Layout(4, {"t": spread(Mesh(("replica", 4)), (8,), ITEM)})
    for rank, copies in plan(source, target, distance=lambda a, b: abs(a - b)):
        assert [copy.source for copy in copies] == [rank]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "tensor t: the source does not have it"),
        ({"t": spread(Mesh(), (8,), 2)}, r"has \(8,\) of 2 bytes"),
        ({"t": spread(Mesh(), (9,), ITEM)}, r"has \(9,\)"),
        ({"t": TensorLayout((8,), ITEM, (Piece(Box((0,), (5,)), (0,)),))}, "lacks a part .* 5 of 8 elements"),
        ({"t": TensorLayout((8,), ITEM, (Piece(Box((0,), (8,)), (0,)), Piece(Box((4,), (8,)), (1,))))}, "holds a part twice"),
    ],
)
def test_what_cannot_be_made_names_the_tensor(source: dict[str, TensorLayout], words: str) -> None:
    target = Layout(1, {"t": spread(Mesh(), (8,), ITEM)})
    with pytest.raises(ReshardError, match=words):
        plan_rank(Layout(2, source), target, 0)


@pytest.mark.parametrize("cuts", [(("dp", 2),), (("ep", 0),), (("dp", 0), ("dp", 1))])
def test_cuts_that_do_not_fit_are_refused(cuts: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(ReshardError):
        spread(Mesh(("dp", 2)), (4, 4), ITEM, cuts)


@pytest.mark.slow
def test_three_thousand_ranks() -> None:
    layers = 80
    shapes = {"q": (8192, 8192), "k": (1024, 8192), "o": (8192, 8192), "up": (28672, 8192), "down": (8192, 28672), "n": (8192,)}
    trainer, engine = Mesh(("dp", 375), ("tp", 8)), Mesh(("replica", 375), ("tp", 8))
    along = {"q": 0, "k": 0, "o": 1, "up": 0, "down": 1}

    def layout(mesh: Mesh, fsdp: bool) -> Layout:
        tensors = {}
        for layer, (name, shape) in itertools.product(range(layers), shapes.items()):
            cuts = ((("tp", along[name]),) if name in along else ()) + ((("dp", 0),) if fsdp else ())
            tensors[f"{layer}.{name}"] = spread(mesh, shape, 2, cuts)
        return Layout(mesh.size, tensors)

    began = time.process_time()
    source, target = layout(trainer, True), layout(engine, False)
    copies = plan_rank(source, target, 1234)
    one = time.process_time() - began
    elements = sum(copy.source_box.size for copy in copies)
    assert elements == layers * (sum(math.prod(shapes[name]) // 8 for name in along) + 8192)
    # And the way back, for all ranks.
    began = time.process_time()
    count = sum(len(copies) for _, copies in plan(target, source))
    back = time.process_time() - began
    assert count >= 3000 * layers * len(along)
    assert one < 10
    assert back < 60
