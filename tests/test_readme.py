"""What the README shows is what there is: its recipe builds, its commands and files exist."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from hpcrl.cli.main import cli
from hpcrl.config.load import load_recipe_module
from hpcrl.plan.plan import check_recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)]
RECIPES = [text for kind, text in BLOCKS if kind == "python" and "def recipe(" in text]
# Two commands may stand on one line, set apart by spaces.
COMMAND_LINES = [
    call.strip()
    for kind, text in BLOCKS
    if kind in ("bash", "sh", "shell", "console")
    for line in text.splitlines()
    for call in re.split(r"\s+(?=hpcrl )|\s+&&\s+", line.partition(" #")[0])
    if call.strip().startswith("hpcrl ")
]
INLINE = re.findall(r"`(hpcrl [^`]*)`", README)


def test_the_recipe_builds_and_its_streams_hold(tmp_path: Path):
    assert RECIPES, "the README explains a recipe"
    for number, text in enumerate(RECIPES):
        path = tmp_path / f"readme_{number}.py"
        path.write_text(text)
        recipe = load_recipe_module(path).recipe()
        assert check_recipe(recipe) == []


def test_python_blocks_are_python():
    for kind, text in BLOCKS:
        if kind == "python":
            compile(text, "README.md", "exec")


@pytest.mark.parametrize("line", sorted({*COMMAND_LINES, *INLINE}))
def test_every_command_and_option_exists(line: str):
    words = shlex.split(line.replace("…", "X"))[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{line!r}: there is no command {name!r}"
        command = found
    options = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "-h"}
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    assert [option for option in given if option not in options] == [], line


def test_commands_are_shown():
    named = {line.split()[1] for line in COMMAND_LINES if len(line.split()) > 1}
    assert named >= {"run", "plan", "status", "logs", "diff", "doctor", "roles"}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:tools|recipes|slurm|sweeps)/[\w./-]*\w", README))))
def test_files_that_are_named_exist(path: str):
    assert (ROOT / path).exists()


def test_settings_that_are_shown_are_taken():
    """Each ``--set`` of a command on a recipe of the tree is a parameter or field of that recipe."""
    from hpcrl.config.override import build_recipe

    for line in COMMAND_LINES:
        words = shlex.split(line.replace("…", "X"))
        recipes = [word for word in words if word.startswith("recipes/")]
        sets = [after for word, after in pairwise(words) if word == "--set"]
        if recipes:
            build_recipe(ROOT / recipes[0], sets)
