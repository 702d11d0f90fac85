"""Saves of several ranks: who wrote what, and many of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrl.checkpoint.state.layout import METADATA, TRAINED, SaveName, rng_name
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.checkpoint.state.part import Part, write_part
from hpcrl.checkpoint.view.saves import list_saves, writer_of
from hpcrl.checkpoint.view.verify import verify_save
from hpcrl.run.disk import write_file

NAME = SaveName(2, 7, 1)


def commit(folder: Path, ranks: int) -> Path:
    """A save as so many ranks leave it, each on a host of its own."""
    save = folder / str(NAME)
    save.mkdir(parents=True)
    files = []
    for rank in range(ranks):
        own = [
            write_file(save / name, [f"{name} of {rank}".encode()], durable=False)
            for name in (f"__{rank}_0.distcp", rng_name(rank))
        ]
        files += [*own, write_part(save, Part(rank=rank, host=f"node{rank}", files=own))]
    files += [write_file(save / name, [b"x"], durable=False) for name in (METADATA, TRAINED)]
    write_manifest(folder, Manifest(run_id="r", attempt=2, step=7, number=1, files=files))
    return save


@pytest.fixture
def save(tmp_path: Path) -> Path:
    return commit(tmp_path, 4)


@pytest.mark.parametrize(
    ("file", "by"),
    [
        ("__3_0.distcp", "rank 3 on node3"),
        ("rng-1.pt", "rank 1 on node1"),
        ("part-2.json", "rank 2 on node2"),
        (METADATA, "rank 0 on node0"),
        (TRAINED, "rank 0 on node0"),
        ("manifest.json", "rank 0 on node0"),
        ("stray", "an unknown rank"),
    ],
)
def test_the_rank_that_wrote_a_file_and_its_host(save: Path, file: str, by: str) -> None:
    assert writer_of(save, file) == by


def test_a_damaged_shard_is_told_with_its_rank(save: Path) -> None:
    path = save / "__2_0.distcp"
    path.write_bytes(path.read_bytes()[::-1])
    (save / "rng-3.pt").unlink()
    (save / "part-3.json").unlink()
    (info,) = list_saves(save.parent, "r")
    assert info.state == "damaged"
    assert "rng-3.pt is missing" in info.problem
    found = {finding.file.name: finding for finding in verify_save(save.parent, info)}
    assert {name: finding.by for name, finding in found.items()} == {
        "__2_0.distcp": "rank 2 on node2",
        "rng-3.pt": "rank 3",
        "part-3.json": "rank 3",
    }
    assert "its checksum is" in found["__2_0.distcp"].text


def test_a_save_that_goes_while_it_is_looked_at_is_left_out(save: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcrl.checkpoint.view import saves as saves_module

    def gone(folder: Path) -> int:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(saves_module, "folder_bytes", gone)
    assert list_saves(save.parent, "r") == []


@pytest.mark.slow
def test_thousands_of_shards_are_listed_in_a_moment(tmp_path: Path) -> None:
    commit(tmp_path, 1000)
    began = time.monotonic()
    (info,) = list_saves(tmp_path, "r")
    assert info.state == "committed"
    assert len(info.manifest.files) == 3002  # type: ignore[union-attr]
    assert time.monotonic() - began < 10
    assert list(verify_save(tmp_path, info)) == []
