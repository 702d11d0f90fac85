"""``--set name=value``: parameters of ``recipe()`` first, then any field of the recipe that it made.

A field is named by its dotted path (``schedule.window``, ``groups.trainer.replicas``, ``streams.samples.block_rows``), or,
short, by a group and a field of its role, of the group, or of its resources (``trainer.lr``, ``trainer.gpus``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcrl.config import fields
from hpcrl.config.load import load_recipe_module, parameters, recipe_function, where
from hpcrl.config.nearest import nearest
from hpcrl.config.values import describe, is_supported, parse
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed


def build_recipe(path: Path, sets: Sequence[str] = (), *, size: Mapping[str, int | None] | None = None) -> Recipe:
    """Import a recipe file, call its ``recipe()`` and override fields of the result.

    Args:
        sets: ``name=value`` each.
        size: what the command line says of the cluster, ``nodes`` and ``gpus_per_node``: for parameters of that name, if
            ``sets`` does not give them, so that a recipe can fill what it gets. None = it does not say.

    Raises:
        CheckFailed: every bad override, a required parameter that is not given, an exception inside the recipe.
    """
    module = load_recipe_module(path)
    assignments, problems = split_sets(sets)
    kinds = parameters(module)
    arguments: dict[str, Any] = {}
    rest: dict[str, str] = {}
    for name, text in assignments.items():
        if name in kinds:
            _parse_into(arguments, name, text, kinds[name], problems)
        else:
            rest[name] = text
    for name, value in (size or {}).items():
        if value is not None and name in kinds:
            arguments.setdefault(name, value)
    recipe = _call(module, path, arguments, set(assignments), problems)
    if recipe is not None:
        recipe = override_fields(recipe, rest, kinds, problems)
    if problems or recipe is None:
        raise CheckFailed(problems)
    return recipe


def split_sets(sets: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Texts by name, and what is wrong: no ``=``, no name, a name given twice."""
    assignments: dict[str, str] = {}
    problems = []
    for item in sets:
        name, separator, text = item.partition("=")
        name = name.strip()
        if not separator or not name:
            problems.append(f"--set {item}: write it as name=value")
        elif name in assignments:
            problems.append(f"--set {name} is given twice ({assignments[name]!r} and {text!r})")
        else:
            assignments[name] = text
    return assignments, problems


def override_fields(recipe: Recipe, texts: Mapping[str, str], known: Iterable[str], problems: list[str]) -> Recipe:
    """The recipe with fields replaced; what is wrong is added to ``problems``.

    Args:
        texts: value as text, by dotted path or short name.
        known: further names that an error about an unknown name may suggest (parameters of ``recipe()``).
    """
    taken: dict[tuple[str, ...], str] = {}
    values: dict[tuple[str, ...], Any] = {}
    for name, text in texts.items():
        path = _full_path(recipe, name)
        found = fields.find(recipe, path) if path else None
        if path is None or found is None:
            options = [*known, *(".".join(item) for item in fields.leaves(recipe)), *_short_names(recipe)]
            problems.append(f"--set {name}: there is no such parameter or field; {nearest(name, options)}")
        elif path in taken:
            problems.append(f"--set {name} and --set {taken[path]} are the same field, given twice")
        elif not is_supported(found.kind):
            inside = [".".join(path + item) for item in fields.leaves(found.value)][:6]
            problems.append(
                f"--set {name}: a {describe(found.kind)} cannot be given as text; "
                + (f"set a field of it: {', '.join(inside)}" if inside else "set it in the recipe file")
            )
        else:
            taken[path] = name
            held: dict[str, Any] = {}
            _parse_into(held, name, text, found.kind, problems)
            if held:
                values[path] = held[name]
    for path, value in values.items():
        try:
            recipe = fields.replaced(recipe, path, value)
        except (TypeError, ValueError) as error:
            problems.append(f"--set {taken[path]}={texts[taken[path]]}: {error}")
    return recipe


def _parse_into(values: dict[str, Any], name: str, text: str, kind: Any, problems: list[str]) -> None:
    try:
        values[name] = parse(text, kind)
    except ValueError:
        problems.append(f"--set {name}={text}: expected {describe(kind)}")


def _call(module: ModuleType, path: Path, arguments: Mapping[str, Any], given: set[str], problems: list[str]) -> Recipe | None:
    function: Callable[..., Any] = recipe_function(module)
    missing = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and name not in arguments
    ]
    problems += [
        f"recipe {path} needs {name}: give --set {name}={describe(parameters(module)[name])}"
        for name in missing
        if name not in given
    ]
    if missing:
        return None
    try:
        recipe = function(**arguments)
    except CheckFailed as error:
        problems += error.problems
        return None
    except Exception as error:  # noqa: BLE001 - a recipe is a person's program and may raise anything
        problems.append(f"recipe() of {path} failed: {where(error, path.absolute())}")
        return None
    if not isinstance(recipe, Recipe):
        problems.append(f"recipe() of {path} returned a {type(recipe).__name__}; it must return a hpcrl.recipe.Recipe")
        return None
    return recipe


def _full_path(recipe: Recipe, name: str) -> tuple[str, ...] | None:
    path = tuple(name.split("."))
    if fields.find(recipe, path[:1]) is not None:
        return path
    if path[0] not in recipe.groups or len(path) == 1:
        return None
    for middle in (("role",), (), ("resources",)):
        full = ("groups", path[0], *middle, *path[1:])
        if fields.find(recipe, full) is not None:
            return full
    return None


def _short_names(recipe: Recipe) -> list[str]:
    names = []
    for group, held in recipe.groups.items():
        for value in (held.role, held.resources):
            names += [".".join((group, *item)) for item in fields.leaves(value)]
        names.append(f"{group}.replicas")
    return names
