from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.main import cli

TOY = Path(__file__).parent / "toy_recipe.py"


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Output of ``hpcrl submit --dry-run`` where there is no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["submit", str(TOY), "--site", "local-cluster", "--dry-run", *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return str(done.exception)
        return done.stdout

    return call


def test_a_partition_of_one_component_makes_a_script_of_its_own(dry_run):
    value = json.loads(dry_run("--partition", "idler=low", "--json"))
    (name,) = value["joined"]
    assert name == "batch-idler.sh"
    assert "--partition=low" in value["joined"][name]
    assert "hpcrl.supervise.joiner" in value["joined"][name]
    assert "--partition=main" in value["script"]
    assert "idler" not in value["script"]
    assert [(item["name"], item["joins"]) for item in value["layout"]["components"]] == [("hub", False), ("idler", True)]
    text = dry_run("--partition", "idler=low")
    assert text.index("# batch.sh") < text.index("# batch-idler.sh")


def test_work_in_a_preemptible_partition_beside_protected_work_is_refused(dry_run):
    text = dry_run("--partition", "hub=low")
    assert "doubler, sink, source must stay" in text
    assert "Put component hub into a protected partition" in text
    assert json.loads(dry_run("--partition", "low", "--json"))["joined"] == {}
