"""Rows of a file one by one and by their labels; damaged files are refused and nothing else happens."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.datasets import DataSets
from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.rows import open_rows
from hpcrl.dataplane.snapshot.write import write_rows
from hpcrl.recipe import Column, Stream

TOKENS = Column(name="tokens", dtype="int32", ragged=True)
REWARD = Column(name="reward", dtype="float32")
TEXT = Column(name="text", dtype="str")
STREAM = Stream(name="s", columns=(TOKENS, REWARD, TEXT))


def block(first: int, rows: int, *, prompt: int | None, version: int = 0, reward: float | None = None) -> SavedBlock:
    ids = np.arange(first, first + rows)
    columns = {
        "tokens": pack("s", TOKENS, ids, [np.arange(k, k + k % 4, dtype=np.int32) for k in ids]),
        "text": pack("s", TEXT, ids, [f"row {k}" if k % 3 else "" for k in ids]),
    }
    if reward is not None:
        columns["reward"] = pack("s", REWARD, ids, np.full(rows, reward, np.float32))
    labels = Labels() if prompt is None else Labels([prompt] * rows, [version] * rows, [version + 1] * rows, [3] * rows)
    return SavedBlock("s", first, rows, columns, labels)


BLOCKS = [
    block(100, 4, prompt=1, version=5, reward=0.5),
    block(10, 3, prompt=2, version=6, reward=1.0),
    block(50, 2, prompt=1, version=7),
    block(60, 1, prompt=None, reward=2.0),
]


@pytest.fixture
def path(tmp_path):
    write_rows(tmp_path / "rows.h5", [STREAM], BLOCKS, about={"run_id": "r", "t": 1e12, "attempt": 3})
    return tmp_path / "rows.h5"


def test_rows_by_id_and_place(path):
    with open_rows(path) as rows:
        table = rows.tables["s"]
        assert rows.about == {"kind": "hpcrl.rows", "layout": 1, "run_id": "r", "t": 1e12, "attempt": 3}
        assert len(table) == 10
        assert table.row_ids.tolist() == [100, 101, 102, 103, 10, 11, 12, 50, 51, 60]
        assert [table.place(row) for row in (103, 10, 60)] == [3, 4, 9]
        for gone in (99, 104, 0, 1000):
            with pytest.raises(KeyError, match=f"stream 's' has no row {gone}"):
                table.place(gone)
        row = table.row(table.place(11))
        assert row.keys() == {"tokens", "reward", "text"}
        assert (row["tokens"].tolist(), row["reward"], row["text"]) == ([11, 12, 13], 1.0, "row 11")
        assert table.row(7).keys() == {"tokens", "text"}


@pytest.mark.parametrize("places", [slice(None), slice(2, 5), slice(8, None, -2), [9, 0, 0, 1, 4, -1], [], np.array([3, 4])])
def test_columns_of_any_rows_in_any_order(path, places):
    with open_rows(path) as rows:
        table = rows.tables["s"]
        wanted = np.arange(10)[places if isinstance(places, slice) else np.array(places, int)]
        ids = table.row_ids[wanted].tolist()
        assert table.read("text", places) == [f"row {k}" if k % 3 else "" for k in ids]
        assert [row.tolist() for row in table.read("tokens", places)] == [[k + n for n in range(k % 4)] for k in ids]
        reward = table.read("reward", places)
        assert reward.dtype == np.float32
        assert reward.tolist() == [[0.5, 0.5, 0.5, 0.5, 1, 1, 1, 0, 0, 2][k] for k in wanted]


def test_a_place_that_is_not_there(path):
    with open_rows(path) as rows, pytest.raises(IndexError):
        rows.tables["s"].read("reward", [10])


def test_filters_read_labels_and_numbers_only(path, monkeypatch):
    loaded = []
    load = DataSets.load
    monkeypatch.setattr(DataSets, "load", lambda self, name, *rest: loaded.append(name) or load(self, name, *rest))
    with open_rows(path) as rows:
        table = rows.tables["s"]
        assert table.where().tolist() == list(range(10))
        assert table.where(prompt=1).tolist() == [0, 1, 2, 3, 7, 8]
        assert table.where(versions=(6, 8)).tolist() == [4, 5, 6, 7, 8]
        assert table.where(versions=(5, 7)).tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert table.where(ranges={"reward": (0.5, 1.0)}).tolist() == [0, 1, 2, 3, 4, 5, 6]
        # What was not filled has no value, 0 neither.
        assert table.where(ranges={"reward": (-1, 0.4)}).tolist() == []
        assert table.where(prompt=1, versions=(0, 9), ranges={"reward": (0, 9)}).tolist() == [0, 1, 2, 3]
        # No label is not the label 0.
        assert table.where(prompt=0).tolist() == []
    assert {name for name in loaded if name.startswith("columns/")} == {
        f"columns/reward/{part}" for part in ("values", "present")
    }


def test_wrong_names_and_kinds(path):
    with open_rows(path) as rows:
        table = rows.tables["s"]
        with pytest.raises(SnapshotError, match=r"stream 's' has no column 'nope'; it has \['tokens', 'reward', 'text'\]"):
            table.read("nope", [0])
        with pytest.raises(SnapshotError, match="column 'tokens' of stream 's' is not one number a row"):
            table.where(ranges={"tokens": (0, 1)})
        with pytest.raises(SnapshotError, match="no column 'nope'"):
            table.present("nope")


def test_chosen_blocks_in_the_order_asked_for(path):
    with open_rows(path) as rows:
        got = list(rows.tables["s"].blocks([3, 0, 1, 3]))
    assert [b.first for b in got] == [60, 100, 10, 60]
    for one, want in zip(got, (BLOCKS[3], BLOCKS[0], BLOCKS[1], BLOCKS[3]), strict=True):
        assert one.labels == want.labels
        assert {name: data.tobytes() for name, data in one.columns.items()} == {
            name: data.tobytes() for name, data in want.columns.items()
        }


def test_other_files_are_refused(tmp_path):
    with pytest.raises(SnapshotError, match=r"none\.h5 is not there"):
        open_rows(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(SnapshotError, match=r"text\.h5 cannot be read or is damaged"):
        open_rows(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["streams"] = [1]
    with pytest.raises(SnapshotError, match=r"other\.h5 holds no rows of hpcrl"):
        open_rows(tmp_path / "other.h5")
    write_rows(tmp_path / "new.h5", [STREAM], [], about={"layout": 2})
    with pytest.raises(SnapshotError, match=r"new\.h5 has layout 2; this hpcrl reads 1"):
        open_rows(tmp_path / "new.h5")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_ends", [4, 7, 9, 11]),
        ("block_ends", [4, 4, 9, 10]),
        ("block_ends", [4, 7, 9]),
        ("row_ids", [1.0] * 10),
        ("columns/tokens/offsets", [0] * 10),
        ("columns/tokens/offsets", [0, 5, 3, 3, 3, 3, 3, 3, 3, 3, 3]),
        ("columns/tokens/offsets", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10**9]),
        ("columns/text/values", [255] * 41),
        ("columns/reward/present", [True]),
        ("columns/reward/values", np.zeros((10, 2), np.float32)),
        ("labels/prompts/values", np.zeros(9, np.int64)),
        ("labels/prompts/present", None),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(path, name, value):
    with h5py.File(path, "r+") as file:
        at = f"streams/s/{name}"
        size, kind = file[at].shape, file[at].dtype
        del file[at]
        if value is not None:
            value = np.array(value, kind) if isinstance(value, list) and kind != np.int64 else np.array(value)
            file[at] = value[: size[0]] if name.endswith("text/values") else value

    def read_all():
        with open_rows(path) as rows:
            list(rows.tables["s"].blocks())

    with pytest.raises(SnapshotError, match=r"rows\.h5.*damaged"):
        read_all()


def test_a_garbled_or_cut_file_gives_its_error_or_its_rows_and_nothing_else(path, tmp_path):
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    errors = []
    for k in range(60):
        data = bytearray(whole)
        if k % 2:
            data = data[: int(rng.integers(len(data)))]
        else:
            at = int(rng.integers(4096))
            data[at] ^= 0xFF
        (tmp_path / "bad.h5").write_bytes(data)
        try:
            with open_rows(tmp_path / "bad.h5") as rows:
                for table in rows.tables.values():
                    list(table.blocks())
        except SnapshotError as error:
            errors.append(str(error))
    assert len(errors) >= 30
    assert all("bad.h5" in error for error in errors)
