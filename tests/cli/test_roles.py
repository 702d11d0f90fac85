import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.main import cli
from hpcrl.cli.roles import find_roles

JUDGE = '''
from dataclasses import dataclass
from typing import ClassVar
from hpcrl.recipe import Reads, Role, Writes


@dataclass(frozen=True, kw_only=True)
class Judge(Role):
    """Judges samples.

    More of it.
    """

    service: ClassVar[bool] = True
    model: str
    stream: str = "rows"

    def reads(self):
        return (Reads(stream=self.stream, columns=("tokens", "prompt"), final=True),)

    def writes(self):
        return (Writes(stream=self.model, columns=("verdict",)),)


class _Hidden(Role):
    pass
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "made_up_roles"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "judge.py").write_text(JUDGE)
    (folder / "again.py").write_text("from made_up_roles.judge import Judge\n")
    (folder / "broken.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "made_up_roles"
    for name in [name for name in sys.modules if name.startswith("made_up_roles")]:
        del sys.modules[name]


def test_roles_are_found_once_where_they_are_defined(package: str) -> None:
    [judge], broken = find_roles(package)
    assert judge.name == "Judge"
    assert judge.path == "made_up_roles.judge:Judge"
    assert judge.service
    assert judge.about == "Judges samples."
    assert judge.required == ("model",)
    assert judge.reads == ("rows: tokens, prompt (final)",)
    assert judge.writes is None, "depends on a required setting"
    assert judge.listens == ()
    assert [module for module, _ in broken] == ["made_up_roles.broken"]
    assert "no_such_module_anywhere" in broken[0][1]


def test_the_built_in_roles_are_listed() -> None:
    listed = CliRunner().invoke(cli, ["roles", "list"])
    assert listed.exit_code == 0
    as_json = CliRunner().invoke(cli, ["roles", "list", "--json"])
    roles = json.loads(as_json.stdout)
    assert {role["name"] for role in roles} >= {"Reward", "Rollout", "Inference"}
    for role in roles:
        assert role["path"] in listed.stdout
        assert role["about"]
        assert role["path"].startswith("hpcrl.roles.")
    assert {role["name"] for role in roles if role["service"]} == {"Inference"}
