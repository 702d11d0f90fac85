"""A resolved recipe as JSON, and back, exactly.

A dataclass is an object with ``$type`` (``module:QualName``) and its fields; a tuple is an array; what JSON lacks is tagged:
``$list``, ``$path``, ``$float`` (inf, nan), ``$map`` (a mapping whose keys are not all plain strings).
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, cast

from hpcrl.config.load import load_recipe_module
from hpcrl.config.nearest import nearest
from hpcrl.recipe import Recipe
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed


def recipe_to_json(recipe: Recipe) -> str:
    """The recipe as indented JSON that ends in a newline; equal recipes give equal text.

    Raises:
        CheckFailed: a value cannot be written, or a class cannot be found again by its name; every such place is named.
    """
    problems: list[str] = []
    value = _encode(recipe, "recipe", problems)
    if problems:
        raise CheckFailed(problems)
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def recipe_from_json(text: str, source: str = "recipe.json") -> Recipe:
    """The recipe that :func:`recipe_to_json` wrote; a field that the text lacks takes its default.

    Args:
        source: what errors call the text.

    Raises:
        CheckFailed: no JSON, an unknown type or field, or a value that a class refuses.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckFailed([f"{source} is not JSON: {error}"]) from error
    problems: list[str] = []
    recipe = _decode(value, "recipe", problems)
    if not problems and not isinstance(recipe, Recipe):
        problems.append(f"holds a {type(recipe).__name__}, not a Recipe")
    if problems:
        raise CheckFailed([f"{source}: {problem}" for problem in problems])
    return cast(Recipe, recipe)


def recipe_from_run(run: RunDirectory) -> Recipe:
    """The resolved recipe of a run, with the classes of its own copy ``RUN/recipe.py`` where there is one.

    Raises:
        CheckFailed: a file of the run is missing or broken.
    """
    if (run.path / "recipe.py").exists():
        load_recipe_module(run.path / "recipe.py")
    path = run.path / "recipe.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckFailed([f"the run's resolved recipe {path} cannot be read: {error.strerror}"]) from error
    return recipe_from_json(text, str(path))


def type_tag(kind: type) -> str:
    """``module:QualName`` of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _encode(value: Any, path: str, problems: list[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        problems.append(f"{path}: an Enum ({type_tag(type(value))}) cannot be written; use a Literal of its values")
        return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, int | str):
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, tuple | list):
        items = [_encode(item, f"{path}.{index}", problems) for index, item in enumerate(value)]
        return items if isinstance(value, tuple) else {"$list": items}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, problems)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, problems)
    problems.append(
        f"{path}: a value of type {type_tag(type(value))} cannot be written to JSON; "
        "use numbers, text, paths, tuples, mappings and dataclasses, or name a function as 'module:function'"
    )
    return None


def _encode_mapping(value: Mapping[Any, Any], path: str, problems: list[str]) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(item, f"{path}.{key}", problems) for key, item in value.items()}
    pairs = [(_encode(k, f"{path} key", problems), _encode(v, f"{path}.{k}", problems)) for k, v in value.items()]
    return {"$map": [list(pair) for pair in pairs]}


def _encode_dataclass(value: Any, path: str, problems: list[str]) -> dict[str, Any]:
    kind = type(value)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        problems.append(
            f"{path}: class {kind.__qualname__} of {kind.__module__} cannot be found by other processes; "
            "define it at the top level of the recipe file or of a module beside it"
        )
    fields = [field for field in dataclasses.fields(value) if field.init]
    return {"$type": type_tag(kind)} | {
        field.name: _encode(getattr(value, field.name), f"{path}.{field.name}", problems) for field in fields
    }


def _decode(value: Any, path: str, problems: list[str]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, f"{path}.{index}", problems) for index, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    if "$type" in value:
        return _decode_dataclass(value, path, problems)
    if "$list" in value:
        return [_decode(item, f"{path}.{index}", problems) for index, item in enumerate(value["$list"])]
    if "$path" in value:
        return Path(value["$path"])
    if "$float" in value:
        return float(value["$float"])
    if "$map" in value:
        return {_decode(k, f"{path} key", problems): _decode(v, f"{path}.{k}", problems) for k, v in value["$map"]}
    unknown = [key for key in value if key.startswith("$")]
    if unknown:
        problems.append(f"{path}: unknown tag {unknown[0]}")
        return None
    return {key: _decode(item, f"{path}.{key}", problems) for key, item in value.items()}


def _decode_dataclass(value: dict[str, Any], path: str, problems: list[str]) -> Any:
    tag = value["$type"]
    try:
        kind = _find(tag)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        problems.append(f"{path}: unknown type {tag!r}: {error}")
        return None
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    count = len(problems)
    arguments = {}
    for name, item in value.items():
        if name == "$type":
            continue
        if name not in names:
            problems.append(f"{path}: {tag} has no field {name!r}; {nearest(name, names)}")
        arguments[name] = _decode(item, f"{path}.{name}", problems)
    if len(problems) > count:
        return None
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        problems.append(f"{path}: {tag} cannot be made: {error}")
        return None


def _find(tag: str) -> Any:
    module, separator, name = tag.partition(":")
    if not separator:
        raise ValueError("a type is written module:Name")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise TypeError("it is no dataclass")
    return found
