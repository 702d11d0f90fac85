"""One recipe as another: the same function with other defaults."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def preset(recipe: F, doc: str = "", **defaults: Any) -> F:
    """A copy of a recipe function whose parameters have these defaults; all else is as it was.

    Args:
        doc: the copy's docstring; empty keeps the original's.

    Raises:
        TypeError: it has no parameter of that name.
    """
    function = cast(types.FunctionType, recipe)
    parameters = inspect.signature(function).parameters
    if unknown := sorted(defaults.keys() - parameters.keys()):
        raise TypeError(f"{function.__qualname__}() has no parameter {unknown[0]!r}; it has {list(parameters)}")
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)
    made.__annotations__, made.__doc__ = dict(function.__annotations__), doc or function.__doc__
    # Defaults belong to the last positional parameters, and those between must have one.
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    merged = {name: defaults.get(name, parameters[name].default) for name in parameters}
    filled = [name for name in positional if merged[name] is not inspect.Parameter.empty]
    if filled != positional[len(positional) - len(filled) :]:
        raise TypeError(f"{function.__qualname__}(): parameters without a default must come first")
    made.__defaults__ = tuple(merged[name] for name in filled)
    made.__kwdefaults__ = {
        name: merged[name]
        for name, one in parameters.items()
        if one.kind is one.KEYWORD_ONLY and merged[name] is not inspect.Parameter.empty
    }
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return cast(F, made)
