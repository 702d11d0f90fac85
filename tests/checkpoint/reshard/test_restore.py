from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from hpcrl.checkpoint.reshard.box import Box
from hpcrl.checkpoint.reshard.layout import Layout, Mesh, ReshardError, TensorLayout, spread
from hpcrl.checkpoint.reshard.restore import SaveReader, Wanted, restore

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
]


class ShardPlanner:
    """Stands in for a planner of several ranks: gives the chunks that it was made with."""

    def __init__(self, chunks: dict[MetadataIndex, torch.Tensor]) -> None:
        self._chunks = chunks

    def resolve_data(self, item: WriteItem) -> torch.Tensor:
        return self._chunks[item.index]


def save_sharded(folder: Path, whole: dict[str, torch.Tensor], layout: Layout) -> None:
    """What the ranks of a layout would save, by torch's own writer."""
    writer = FileSystemWriter(str(folder), sync_files=False)
    writer.set_up_storage_writer(True)
    entries: dict[str, TensorStorageMetadata] = {}
    results = []
    by_rank: dict[int, list[tuple[str, Box]]] = {}
    for name, held in layout.tensors.items():
        properties = TensorProperties.create_from_tensor(whole[name])
        entries[name] = TensorStorageMetadata(properties, whole[name].size(), [])
        for piece in held.pieces:
            by_rank.setdefault(piece.ranks[0], []).append((name, piece.box))
    for rank, boxes in sorted(by_rank.items()):
        items, chunks = [], {}
        for name, box in boxes:
            chunk = ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape))
            entries[name].chunks.append(chunk)
            index = MetadataIndex(name, chunk.offsets)
            data = TensorWriteData(chunk, entries[name].properties, entries[name].size)
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
            chunks[index] = whole[name][box.slices]
        plan = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(items))] * (rank + 1))[rank]
        results.append(writer.write_data(plan, ShardPlanner(chunks)).wait())
    writer.finish(Metadata(entries), results)


def example(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    starts = itertools.count(1, 100)
    return {
        name: (torch.arange(torch.Size(shape).numel(), dtype=torch.float32) + next(starts)).reshape(shape).to(dtype)
        for name, shape in shapes.items()
    }


def sharded(mesh: Mesh, whole: dict[str, torch.Tensor], *cuts: tuple[str, int]) -> Layout:
    def fitting(tensor: torch.Tensor) -> tuple[tuple[str, int], ...]:
        return tuple((name, dim) for name, dim in cuts if dim < tensor.ndim)

    tensors = {n: spread(mesh, tuple(t.shape), t.dtype.itemsize, fitting(t)) for n, t in whole.items()}
    return Layout(mesh.size, tensors)


def read_rank(reader: SaveReader, layout: Layout, rank: int, whole: dict[str, torch.Tensor]) -> None:
    """Read all that a rank holds and compare."""
    boxes = {n: held.pieces[k].box for n, held in layout.tensors.items() if (k := held.held_by(rank)) is not None}
    wanted = {name: Wanted(box, torch.zeros(box.shape, dtype=whole[name].dtype)) for name, box in boxes.items()}
    reader.read(wanted)
    for name, (box, out) in wanted.items():
        assert torch.equal(out, whole[name][box.slices])


SHAPES = {"w": (37, 24), "e": (5, 6, 4), "v": (13,), "s": ()}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rank_of_any_layout_reads_its_shards_of_a_save_of_any_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = example(SHAPES, data.draw(st.sampled_from([torch.float32, torch.bfloat16])))

    def layout() -> Layout:
        mesh = Mesh(("dp", data.draw(st.integers(1, 3))), ("tp", data.draw(st.integers(1, 3))))
        cuts = data.draw(st.permutations([("dp", data.draw(st.integers(0, 1))), ("tp", data.draw(st.integers(0, 2)))]))
        return sharded(mesh, whole, *cuts[: data.draw(st.integers(0, 2))])

    folder = tmp_path_factory.mktemp("save")
    save_sharded(folder, whole, layout())
    target = layout()
    reader = SaveReader(folder)
    for rank in range(target.ranks):
        read_rank(reader, target, rank, whole)


def test_saves_made_here_are_plain_ones(tmp_path: Path) -> None:
    whole = example(SHAPES)
    save_sharded(tmp_path, whole, sharded(Mesh(("dp", 3)), whole, ("dp", 0)))
    again = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    load(again, storage_reader=FileSystemReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_a_rank_of_eight_reads_an_eighth(tmp_path: Path) -> None:
    shapes = {f"{i}.{name}": shape for i in range(3) for name, shape in {"a": (576, 96), "b": (192, 576), "c": (576,)}.items()}
    whole = example(shapes)
    save(whole, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    reader = SaveReader(tmp_path)
    read_rank(reader, sharded(Mesh(("dp", 8)), whole, ("dp", 0)), 5, whole)
    assert reader.bytes_read <= sum(tensor.nbytes for tensor in whole.values()) / 7


def test_columns_are_read_in_few_large_reads(tmp_path: Path) -> None:
    whole = example({"w": (512, 64)})
    save(whole, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    reader = SaveReader(tmp_path)
    assert torch.equal(reader.read_slice("w", Box((0, 16), (512, 32))), whole["w"][:, 16:32])
    # Gaps of 192 bytes are not worth a read each.
    assert whole["w"].nbytes / 4 < reader.bytes_read < whole["w"].nbytes + 4096
    wide = example({"w": (8, 65536)})
    save(wide, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    reader = SaveReader(tmp_path)
    assert torch.equal(reader.read_slice("w", Box((0, 0), (8, 4096))), wide["w"][:, :4096])
    assert reader.bytes_read < wide["w"].nbytes / 16 + 4096


def test_a_long_row_of_small_ranges_is_read_a_buffer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.checkpoint.reshard.window._BUFFER_BYTES", 1000)
    whole = example({"w": (100, 40)})
    save(whole, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    assert torch.equal(SaveReader(tmp_path).read_slice("w", Box((3, 5), (97, 11))), whole["w"][3:97, 5:11])


def test_a_tensor_laid_out_in_another_way_is_read_whole(tmp_path: Path) -> None:
    turned = torch.arange(24.0).reshape(4, 6).t()
    save({"w": turned}, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    assert torch.equal(SaveReader(tmp_path).read_slice("w", Box((1, 1), (5, 3))), turned[1:5, 1:3])


def test_restore_fills_in_place(tmp_path: Path) -> None:
    whole = example(SHAPES)
    save(whole, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    again = {name: torch.nn.Parameter(torch.zeros_like(tensor)) for name, tensor in whole.items()}
    assert restore(tmp_path, again) >= sum(tensor.nbytes for tensor in whole.values())
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    columns = torch.zeros(37, 48)
    SaveReader(tmp_path).read({"w": Wanted(Box.whole((37, 24)), columns[:, ::2])})
    assert torch.equal(columns[:, ::2], whole["w"])
    assert not columns[:, 1::2].any()


def cut_off(folder: Path) -> None:
    file = next(folder.glob("*.distcp"))
    os.truncate(file, file.stat().st_size // 2)


def overwrite(folder: Path) -> None:
    file = next(folder.glob("*.distcp"))
    file.write_bytes(b"\0" * file.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, r"tensor w cannot be read from .*\.distcp from byte"),
        (overwrite, r"tensor w cannot be read from .*no tensor as torch"),
        (lambda folder: next(folder.glob("*.distcp")).unlink(), r"tensor w cannot be read from .*No such file"),
        (lambda folder: (folder / ".metadata").unlink(), "no distributed checkpoint in"),
        (lambda folder: (folder / ".metadata").write_bytes(b"x"), "no distributed checkpoint in"),
    ],
)
def test_damage_names_the_file(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    save(example({"w": (64, 64)}), storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    damage(tmp_path)
    with pytest.raises(ReshardError, match=words):
        SaveReader(tmp_path).read_slice("w")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    save({"w": torch.zeros(4, 4), "n": 3}, storage_writer=FileSystemWriter(str(tmp_path)), no_dist=True)
    reader = SaveReader(tmp_path)
    assert isinstance(reader.layout.tensors["w"], TensorLayout)
    for name, out in (("x", torch.zeros(4)), ("n", torch.zeros(1)), ("w", torch.zeros(4, 4).half()), ("w", torch.zeros(4, 3))):
        with pytest.raises(ReshardError):
            reader.read({name: Wanted(Box.whole((4, 4)), out)})
    with pytest.raises(ReshardError, match="lacks a part"):
        reader.read_slice("w", Box((0, 0), (5, 4)))
