"""Parquet, folders, Hugging Face names, and what is made of a prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrl.data.files import data_files
from hpcrl.data.records import Records
from hpcrl.run.errors import CheckFailed

# As DAPO-Math-17k comes.
ROWS = [
    {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve this.\n\nWhat is {n}+{n}?\n\nRemember."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(2 * n), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": str(n)},
    }
    for n in (1, 2, 1)
]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_parquet_rows_with_a_field_in_a_field(tmp_path: Path):
    path = parquet(tmp_path / "a.parquet", ROWS)
    settings = Records(
        paths=(str(path),),
        answer_field="reward_model.ground_truth",
        prompt_keep=r"^Solve this\.\n\n(.*?)\n\nRemember",
        prompt_end=" Box it.",
        distinct=True,
        system="Be brief.",
    )
    opened = settings.open()
    assert len(opened) == 2, "the third is the first again"
    assert [message["content"] for message in opened[1].prompt] == ["Be brief.", "What is 2+2? Box it."]
    assert (opened[1].answer, opened[1].source) == ("4", f"{path}:2")
    assert set(opened[1].metadata) == {"data_source", "ability", "extra_info"}
    assert "xxh3" in settings.fingerprint()["file 1"]
    assert len(Records(paths=(str(path),), answer_field="reward_model.ground_truth").open()) == 3


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("reward_model.answer", "has no field 'reward_model.answer'; it has ['ground_truth', 'style']"),
        ("ability.answer", "has no field 'ability.answer'; it has a str before 'answer'"),
    ],
)
def test_a_field_in_a_field_that_is_not_there(tmp_path: Path, field: str, said: str):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(CheckFailed) as caught:
        Records(paths=(str(path),), answer_field=field).open()
    assert said in str(caught.value)


def test_a_folder_stands_for_its_files(tmp_path: Path):
    second, first = (parquet(tmp_path / "data" / f"train-{n}.parquet", ROWS[n : n + 1]) for n in (1, 0))
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "README.md").write_text("of the data")
    assert data_files(str(tmp_path)) == [first, second]
    opened = Records(paths=(str(tmp_path),), answer_field="reward_model.ground_truth").open()
    assert [item.source for item in (opened[0], opened[1])] == [f"{first}:1", f"{second}:1"]


def test_a_hub_name_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    repository = tmp_path / "datasets--someone--maths"
    path = parquet(repository / "snapshots" / "abc" / "train.parquet", ROWS)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert data_files("someone/maths") == [path]
    with pytest.raises(CheckFailed, match="dataset 'someone/else' is no file or folder here"):
        data_files("someone/else")


def test_a_damaged_file_and_a_bad_expression(tmp_path: Path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(CheckFailed, match=r"bad\.parquet cannot be read as Parquet"):
        Records(paths=(str(path),)).open()
    with pytest.raises(CheckFailed, match=r"prompt_keep '\(' is no regular expression"):
        Records(paths=("x",), prompt_keep="(").open()


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CheckFailed, match="pip install pyarrow"):
        Records(paths=(str(path),)).open()


def test_a_file_that_is_named_twice_counts_twice_unless_prompts_are_distinct(tmp_path: Path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "1+1?", "answer": 2}\n{"prompt": "2+2?", "answer": 4}\n')
    paths = (str(path), str(path))
    assert [item.answer for item in Records(paths=paths).open()] == ["2", "4", "2", "4"]
    assert [item.answer for item in Records(paths=paths, distinct=True).open()] == ["2", "4"]
