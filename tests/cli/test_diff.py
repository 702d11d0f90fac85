from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.diff import command


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    for name, lr, extra in (("a", 1e-6, {}), ("b", 2e-6, {"clip": [1]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(json.dumps({"groups": {"trainer": {"lr": lr, **extra}}}))
    return str(tmp_path / "a"), str(tmp_path / "b")


def run(*arguments: str):
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})


def test_differences_are_a_table_and_code_1(runs):
    result = run(*runs)
    assert result.exit_code == 1
    for part in ("groups.trainer.lr", "changed", "1e-06", "2e-06", "groups.trainer.clip", "only in B", "[1]"):
        assert part in result.output


def test_json(runs):
    result = run(*runs, "--json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert first == {"kind": "changed", "path": "groups.trainer.lr", "a": 1e-6, "b": 2e-6, "in_a": True, "in_b": True}
    assert second["kind"] == "only in B"


def test_equal_is_code_0_and_a_file_does_as_well(runs):
    result = run(runs[0], f"{runs[0]}/recipe.json")
    assert (result.exit_code, result.output) == (0, "no difference\n")
    assert json.loads(run(runs[0], runs[0], "--json").stdout) == []


def test_what_cannot_be_read_is_code_2(runs, tmp_path):
    result = run(runs[0], str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "nothing" in result.stderr
