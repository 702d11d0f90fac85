from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from hpcrl.config.load import load_recipe_module, parameters, sources
from hpcrl.run.errors import CheckFailed

HEAD = "from __future__ import annotations\nfrom hpcrl.recipe import Recipe, Schedule\n"
BODY = (
    "    return Recipe(name='x', groups={}, streams=(), schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1))\n"
)


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_module_has_one_name_wherever_the_file_lies(tmp_path):
    module = load_recipe_module(write(tmp_path, HEAD + "class Mine: pass\ndef recipe(lr: float = 1e-6) -> Recipe:\n" + BODY))
    assert sys.modules["hpcrl_recipe"] is module
    assert module.Mine.__module__ == "hpcrl_recipe"
    assert parameters(module) == {"lr": float}


def test_helpers_beside_the_file_are_imported_and_listed_and_not_mixed_up(tmp_path):
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, f"value = {value}\n", "my_helper.py")
        path = write(tmp_path / folder, HEAD + "import my_helper\ndef recipe() -> Recipe:\n" + BODY)
        module = load_recipe_module(path)
        assert module.my_helper.value == value
        assert sources(module) == {
            "recipe.py": path,
            "my_helper.py": tmp_path / folder / "my_helper.py",
        }


def test_a_recipe_without_helpers_lists_none(tmp_path):
    path = write(tmp_path, HEAD + "def recipe() -> Recipe:\n" + BODY)
    assert sources(load_recipe_module(path)) == {"recipe.py": path}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n", "defines no function `recipe`"),
        ("def recipe(:\n", "mine.py:1: SyntaxError"),
        ("import a_module_that_is_not_there\n", "mine.py:1: ModuleNotFoundError"),
        ("\n\nx = 1 / 0\n", "mine.py:3: ZeroDivisionError"),
        ("def recipe(lr=1): ...\n", "parameter 'lr' of recipe() has no type annotation"),
        ("def recipe(lr: dict[str, int]): ...\n", "has type dict[str, int], which --set cannot give"),
        ("def recipe(*names: str): ...\n", "must be an ordinary named parameter"),
        ("from __future__ import annotations\ndef recipe(x: Nowhere): ...\n", "cannot be resolved: name 'Nowhere'"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, says):
    with pytest.raises(CheckFailed) as error:
        load_recipe_module(write(tmp_path, text))
    assert says in str(error.value)
    assert "mine.py" in str(error.value)


def test_every_bad_parameter_is_named_at_once(tmp_path):
    with pytest.raises(CheckFailed) as error:
        load_recipe_module(write(tmp_path, "def recipe(a, b: bytes, c: int = 1): ...\n"))
    assert len(error.value.problems) == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckFailed, match=r"nowhere\.py does not exist"):
        load_recipe_module(tmp_path / "nowhere.py")


def test_a_helper_that_was_imported_before_is_kept_with_the_run_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "early_helper.py").write_text("VALUE = 1\n")
    path = tmp_path / "r.py"
    path.write_text("import early_helper\nfrom hpcrl.recipe import Recipe\n\ndef recipe() -> Recipe: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_module("early_helper")
    assert set(sources(load_recipe_module(path))) == {"recipe.py", "early_helper.py"}
