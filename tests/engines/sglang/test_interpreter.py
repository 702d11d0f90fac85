from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcrl.engines.sglang.interpreter import check_interpreter, installed_version, version_problems
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.run.errors import CheckFailed


def installed(folder: Path, version: str) -> Sglang:
    """As far as the interpreter can tell without importing it, SGLang of that version is there."""
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return Sglang(python=sys.executable, python_path=(str(folder),))


def test_the_version_is_asked_of_the_interpreter_without_an_import(tmp_path):
    sglang = installed(tmp_path, "0.5.19")
    assert installed_version(sglang) == "0.5.19"
    check_interpreter(sglang, "in_place")


def test_an_interpreter_that_is_not_there_or_has_none_is_told(tmp_path):
    with pytest.raises(CheckFailed, match="there is no program /none/python here"):
        installed_version(Sglang(python="/none/python"))
    with pytest.raises(CheckFailed, match=r"has no SGLang .*PackageNotFoundError.*install sglang from"):
        installed_version(Sglang(python=sys.executable, python_path=(str(tmp_path),)))


@pytest.mark.parametrize(
    ("version", "pause", "arguments", "says"),
    [
        ("0.5.17", "in_place", (), None),
        ("0.5.20.post1", "in_place", (), None),
        ("0.5.23", "retract", (), None),
        ("0.5.16", "in_place", (), "hpcrl knows 0.5.17 to 0.5.23"),
        ("0.6.0", "in_place", (), "hpcrl knows 0.5.17 to 0.5.23"),
        ("main", "in_place", (), "which is no version"),
        ("0.5.20", "retract", (), "add --disable-radix-cache to sglang.arguments"),
        ("0.5.20", "retract", ("--disable-radix-cache",), None),
    ],
)
def test_versions_that_do_are_known(version, pause, arguments, says):
    problems = version_problems(version, "python", pause, arguments)
    assert problems == [] if says is None else says in problems[0]
