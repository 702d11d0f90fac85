"""Import a recipe file by its path.

It is always known as the module ``hpcrl_recipe``, so that a role class defined in it has one name in the resolved recipe's
JSON, on the launching host and in a role process that imports the copy ``RUN/recipe.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcrl.config.values import describe, is_supported
from hpcrl.run.errors import CheckFailed

MODULE = "hpcrl_recipe"
_HELPERS = "__hpcrl_helpers__"


def load_recipe_module(path: Path) -> ModuleType:
    """Import a recipe file as ``hpcrl_recipe``. Modules beside it can be imported by it, as beside any script.

    Raises:
        CheckFailed: no such file, an exception inside it (file and line), or its ``recipe`` function cannot be called with
            typed parameters.
    """
    path = path.absolute()
    if not path.is_file():
        raise CheckFailed([f"recipe file {path} does not exist"])
    _forget_helpers(path.parent)
    folder = str(path.parent)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise CheckFailed([f"recipe file {path} is no Python file; its name must end in .py"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    before = set(sys.modules)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a recipe is a person's program and may raise anything
        del sys.modules[MODULE]
        raise CheckFailed([f"recipe {path} cannot be imported: {where(error, path)}"]) from error
    setattr(module, _HELPERS, _beside(path.parent, set(sys.modules) - before))
    problems = _signature_problems(module, path)
    if problems:
        raise CheckFailed(problems)
    return module


def sources(module: ModuleType) -> dict[str, Path]:
    """What a run keeps a copy of, by path in the run directory: the recipe as ``recipe.py``, and what it imported beside it."""
    path = Path(str(module.__file__))
    helpers: dict[str, Path] = getattr(module, _HELPERS)
    return {"recipe.py": path, **{str(file.relative_to(path.parent)): file for file in sorted(set(helpers.values()))}}


def recipe_function(module: ModuleType) -> Callable[..., Any]:
    """The module's ``recipe``."""
    function: Callable[..., Any] = module.recipe
    return function


def parameters(module: ModuleType) -> Mapping[str, Any]:
    """Types of the parameters of the module's ``recipe``, by name."""
    function = recipe_function(module)
    hints = typing.get_type_hints(function)
    return {name: hints[name] for name in inspect.signature(function).parameters}


def where(error: BaseException, path: Path) -> str:
    """``file:line: Type: text``, the line being the innermost one of the recipe file if the error passed through it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == str(path)] or frames
    place = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
    return f"{place}{type(error).__name__}: {error}"


def _forget_helpers(folder: Path) -> None:
    # A helper named alike beside another recipe must not be taken for this one's, and one that something else has imported
    # already must count as this one's too.
    last = sys.modules.pop(MODULE, None)
    for name in getattr(last, _HELPERS, {}):
        sys.modules.pop(name, None)
    own = {
        name
        for name, module in sys.modules.items()
        if getattr(module, "__file__", None) in (str(folder / f"{name}.py"), str(folder / name / "__init__.py"))
    }
    for name in list(sys.modules):
        if name.split(".")[0] in own:
            del sys.modules[name]


def _beside(folder: Path, names: set[str]) -> dict[str, Path]:
    found = {}
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if not file or name.split(".")[0] == "hpcrl":
            continue
        path = Path(file)
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            found[name] = path
    return found


def _signature_problems(module: ModuleType, path: Path) -> list[str]:
    function = getattr(module, "recipe", None)
    if not inspect.isfunction(function):
        return [f"recipe file {path} defines no function `recipe`; write `def recipe(...) -> Recipe:` in it"]
    line = function.__code__.co_firstlineno
    try:
        hints = typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError) as error:
        return [f"{path}:{line}: a type in the signature of recipe() cannot be resolved: {error}"]
    problems = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            problems.append(f"{path}:{line}: parameter {name!r} of recipe() must be an ordinary named parameter")
        elif name not in hints:
            problems.append(f"{path}:{line}: parameter {name!r} of recipe() has no type annotation, such as `{name}: int`")
        elif not is_supported(hints[name]):
            problems.append(
                f"{path}:{line}: parameter {name!r} of recipe() has type {describe(hints[name])}, which --set cannot give; "
                "use int, float, bool, str, Literal[...], X | None, tuple[X, ...] or list[X]"
            )
    return problems
