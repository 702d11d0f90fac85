"""What is written comes back byte for byte, a full disk leaves the old file, and plain h5py reads it."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import get_args

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot import blocks as blocks_module
from hpcrl.dataplane.snapshot import gather as gather_module
from hpcrl.dataplane.snapshot.gather import Counts
from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.rows import open_rows
from hpcrl.dataplane.snapshot.write import write_rows
from hpcrl.recipe import Column, DType, Stream

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=6)
TEXT = st.text(st.characters(), max_size=6)  # every code point, lone surrogates too
TOKENS = Column(name="tokens", dtype="int32", ragged=True)
REWARD = Column(name="reward", dtype="float32")


def column_data(draw, column: Column, rows: int):
    if column.dtype == "str":
        return draw(st.lists(TEXT, min_size=rows, max_size=rows))
    if not column.ragged:
        return draw(hnp.arrays(column.dtype, rows))
    return [draw(hnp.arrays(column.dtype, draw(st.integers(0, 4)))) for _ in range(rows)]


@st.composite
def labels(draw, rows: int) -> Labels:
    one = st.one_of(st.just([]), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows))
    return Labels(draw(one), draw(one), draw(one), draw(one))


@st.composite
def saved(draw):
    streams = []
    for name in draw(st.lists(NAME, min_size=1, max_size=3, unique=True)):
        columns = []
        for column in draw(st.lists(NAME, min_size=1, max_size=4, unique=True)):
            dtype = draw(st.sampled_from(get_args(DType)))
            columns.append(Column(name=column, dtype=dtype, ragged=dtype != "str" and draw(st.booleans())))
        streams.append(Stream(name=name, columns=tuple(columns)))
    blocks = []
    first = draw(st.integers(0, 2**62))
    for _ in range(draw(st.integers(0, 6))):
        stream, rows = draw(st.sampled_from(streams)), draw(st.integers(1, 4))
        ids = np.arange(first, first + rows, dtype=np.int64)
        filled = [column for column in stream.columns if draw(st.booleans())]
        packed = {c.name: pack(stream.name, c, ids, column_data(draw, c, rows)) for c in filled}
        blocks.append(SavedBlock(stream.name, first, rows, packed, draw(labels(rows))))
        first += rows + draw(st.integers(0, 3))
    return streams, blocks


def same(got: SavedBlock, want: SavedBlock) -> bool:
    return (
        (got.stream, got.first, got.rows, got.labels) == (want.stream, want.first, want.rows, want.labels)
        and got.columns.keys() == want.columns.keys()
        and all(got.columns[name].tobytes() == want.columns[name].tobytes() for name in want.columns)
    )


def read_back(path: Path, stream: str) -> list[SavedBlock]:
    with open_rows(path) as rows:
        return list(rows.tables[stream].blocks())


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(saved(), st.sampled_from(["none", "lzf", "gzip"]), st.sampled_from([1, 1 << 20]))
def test_every_block_comes_back_byte_for_byte(tmp_path, monkeypatch, case, compression, piece):
    streams, blocks = case
    monkeypatch.setattr(gather_module, "GATHER", piece)
    monkeypatch.setattr(blocks_module, "WINDOW", piece)
    path = tmp_path / "rows.h5"
    counts = write_rows(path, streams, blocks, compression=compression)
    with open_rows(path) as rows:
        assert rows.tables.keys() == {stream.name for stream in streams}
        for stream in streams:
            want = [block for block in blocks if block.stream == stream.name]
            table = rows.tables[stream.name]
            assert tuple(table.columns.values()) == stream.columns
            got = list(table.blocks())
            assert len(got) == len(want)
            assert all(map(same, got, want))
            size = sum(data.nbytes for block in want for data in block.columns.values())
            assert counts[stream.name] == Counts(sum(block.rows for block in want), len(want), size)
    assert list(tmp_path.iterdir()) == [path]


def test_special_floats_keep_their_bits(tmp_path):
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x7F800000, 1], np.uint32)
    ids = np.arange(6, dtype=np.int64)
    block = SavedBlock("s", 0, 6, {"reward": pack("s", REWARD, ids, bits.view(np.float32))})
    write_rows(tmp_path / "rows.h5", [Stream(name="s", columns=(REWARD,))], [block])
    assert same(read_back(tmp_path / "rows.h5", "s")[0], block)


def tokens_blocks(count: int, rows: int = 8, length: int = 1000):
    for number in range(count):
        first = number * rows
        ids = np.arange(first, first + rows, dtype=np.int64)
        data = [np.full(length, number, np.int32)] * rows
        yield SavedBlock("s", first, rows, {"tokens": pack("s", TOKENS, ids, data)})


STREAM = Stream(name="s", columns=(TOKENS, REWARD))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    def peak(count: int) -> int:
        tracemalloc.start()
        write_rows(tmp_path / "rows.h5", [STREAM], tokens_blocks(count, length=8000))
        with open_rows(tmp_path / "rows.h5") as rows:
            assert sum(block.rows for block in rows.tables["s"].blocks()) == 8 * count
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return high

    small, large = peak(100), peak(500)
    assert (tmp_path / "rows.h5").stat().st_size > 120e6
    # 102 MB more in the file; offsets and labels take some bytes a row.
    assert large - small < 16e6


FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from hpcrl.dataplane.packing import pack
from hpcrl.dataplane.snapshot.layout import SavedBlock, SnapshotError
from hpcrl.dataplane.snapshot.write import write_rows
from hpcrl.recipe import Column, Stream

column = Column(name="c", dtype="int32", ragged=True)
stream = Stream(name="s", columns=(column,))

def blocks(count):
    for number in range(count):
        ids = np.arange(number * 8, number * 8 + 8)
        yield SavedBlock("s", number * 8, 8, {"c": pack("s", column, ids, [np.full(1000, number, np.int32)] * 8)})

path = Path(sys.argv[1])
write_rows(path, [stream], blocks(10))
before = path.read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 100, 5_000, 100_000, 1_000_000, 9_000_000, 15_990_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_rows(path, [stream], blocks(500))
    except SnapshotError as error:
        print(error)
    else:
        sys.exit(f"no error at {limit}")
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert write_rows(path, [stream], blocks(20))["s"].rows == 160
"""


def test_a_file_system_that_refuses_leaves_the_old_file_and_the_process_alive(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "rows.h5")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    for line in lines:
        assert re.search(
            r"rows\.h5 cannot be written after [\d.]+ MB \(\[Errno 27\] File too large\); [\d.]+ MB are free", line
        )


def test_nothing_that_was_handed_over_is_looked_at_again(tmp_path):
    def reused():
        for block in tokens_blocks(5):
            ids = np.arange(block.first, block.first + 8)
            reward = pack("s", REWARD, ids, np.full(8, block.first, np.float32))
            yield SavedBlock("s", block.first, 8, {"tokens": block.columns["tokens"], "reward": reward})
            # As a segment of shared memory that goes to the next block.
            reward[:] = 0
            block.columns["tokens"][:] = 0

    write_rows(tmp_path / "rows.h5", [STREAM], reused())
    with open_rows(tmp_path / "rows.h5") as rows:
        table = rows.tables["s"]
        assert table.read("reward", slice(None, None, 8)).tolist() == [0, 8, 16, 24, 32]
        assert [row[0] for row in table.read("tokens", slice(None, None, 8))] == [0, 1, 2, 3, 4]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(SnapshotError, match=r"rows\.h5 cannot be written.*No such file"):
        write_rows(tmp_path / "gone" / "rows.h5", [STREAM], [])


def test_a_producer_that_fails_leaves_nothing(tmp_path):
    def failing():
        yield from tokens_blocks(300)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "rows.h5", [STREAM], failing())
    assert list(tmp_path.iterdir()) == []


IDS = np.arange(2, dtype=np.int64)
GOOD = pack("s", REWARD, IDS, np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (SavedBlock("t", 0, 2, {"reward": GOOD}), r"block 0 is of stream 't'.*\['s'\]"),
        (SavedBlock("s", 0, 2, {"rewrad": GOOD}), "column 'rewrad' is not one of"),
        (SavedBlock("s", 5, 2, {"reward": GOOD}), "block 5, column 'reward': the bytes are those of rows 0 to 1"),
        (SavedBlock("s", 0, 3, {"reward": GOOD}), "the bytes are those of rows 0 to 1"),
        (SavedBlock("s", 0, 0, {}), "at least one row"),
        (SavedBlock("s", 0, 2, {"tokens": GOOD}), "the bytes of another column"),
        (SavedBlock("s", 0, 2, {"reward": GOOD[:-1]}), "stream 's', column 'reward'"),
        (SavedBlock("s", 0, 2, {}, Labels(prompts=[1])), "1 labels 'prompts' for 2 rows"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(tmp_path, block, text):
    with pytest.raises(DataPlaneError, match=text):
        write_rows(tmp_path / "rows.h5", [STREAM], [block])
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    response, reward = Column(name="response_ids", dtype="int32", ragged=True), REWARD
    stream, ids = Stream(name="samples", columns=(response, reward)), np.array([7, 8], np.int64)
    packed = {
        "response_ids": pack("samples", response, ids, [np.array([3, 4], np.int32), np.zeros(0, np.int32)]),
        "reward": pack("samples", reward, ids, np.array([0.5, 1.0], np.float32)),
    }
    write_rows(tmp_path / "rows.h5", [stream], [SavedBlock("samples", 7, 2, packed, Labels(prompts=[5, 6]))])
    example, *_ = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example.count("\n") <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(DOCS), "exec"), {})
    assert capsys.readouterr().out == "7 5 0.5 [3, 4]\n8 6 1.0 []\n"


def test_plain_h5py_finds_what_the_layout_names(tmp_path):
    flag, text = Column(name="done", dtype="bool"), Column(name="a/b", dtype="str")
    stream, ids = Stream(name="..", columns=(flag, text)), np.arange(2, dtype=np.int64)
    one = SavedBlock("..", 0, 2, {"done": pack("..", flag, ids, np.array([True, False]))})
    two = SavedBlock("..", 2, 2, {"a/b": pack("..", text, ids + 2, ["é", ""])})
    write_rows(tmp_path / "rows.h5", [stream], [one, two], about={"run_id": "r"})
    with h5py.File(tmp_path / "rows.h5", "r") as file:
        assert dict(file.attrs) == {"kind": "hpcrl.rows", "layout": 1, "run_id": "r"}
        group = file["streams"][next(iter(file["streams"]))]
        assert group.attrs["name"] == ".."
        assert group["row_ids"][:].tolist() == [0, 1, 2, 3]
        assert group["block_ends"][:].tolist() == [2, 4]
        assert group["columns/done/values"][:].tolist() == [True, False, False, False]
        assert group["columns/done/present"][:].tolist() == [True, False]
        assert group["columns/a%2Fb/offsets"][:].tolist() == [0, 0, 0, 2, 2]
        assert group["columns/a%2Fb/values"][:].tobytes().decode() == "é"
        assert not group["labels/prompts/present"][:].any()
