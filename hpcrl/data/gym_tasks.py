"""One task of reasoning-gym without the hundred others: the whole package takes seconds to import, matplotlib too."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

_PACKAGE = "reasoning_gym"
_LOCK = threading.Lock()


@cache
def registry_with(task: str) -> ModuleType:
    """The package's registry (``create_dataset``, ``get_score_answer_fn``), with that task in it if there is one.

    The module that registers the task is imported alone where that works, and the whole package otherwise.

    Raises:
        ImportError: the package or something that it needs is not installed.
    """
    with _LOCK:
        if _PACKAGE not in sys.modules:
            module = _module_of(task)
            alone = _import_alone(module) if module is not None else None
            if alone is not None and task in alone.DATASETS:
                return alone
        importlib.import_module(_PACKAGE)
        return importlib.import_module(f"{_PACKAGE}.factory")


def _module_of(task: str) -> str | None:
    """Name of the module that registers a task, found in the sources; None if none says so."""
    root = _root()
    named = re.compile(rf"^DATASET_NAME = [\"']{re.escape(task)}[\"']$", re.MULTILINE)
    files = [Path(folder) / name for folder, _, names in os.walk(root) for name in names if name.endswith(".py")]
    # Nearly always the module is called as the task is.
    for file in sorted(files, key=lambda file: (file.stem != task, file)):
        if named.search(file.read_text(encoding="utf-8", errors="replace")):
            return ".".join((_PACKAGE, *file.relative_to(root).with_suffix("").parts))
    return None


def _import_alone(name: str) -> ModuleType | None:
    """Import a module inside empty parents; returns the registry that it registered with, None where that does not work."""
    with _empty_parents(name):
        try:
            # The registry and this one import each other, which works in one order only.
            importlib.import_module(f"{_PACKAGE}.coaching")
            importlib.import_module(name)
            return importlib.import_module(f"{_PACKAGE}.factory")
        except (ImportError, AttributeError):
            return None


@contextmanager
def _empty_parents(name: str) -> Iterator[None]:
    """Packages that only know where their modules lie. They are forgotten afterwards, so that a later import is a whole one."""
    parts = name.split(".")
    folder = _root()
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(folder.joinpath(*parts[1:depth]))]
        sys.modules[package.__name__] = package
    try:
        yield
    finally:
        for known in [known for known in sys.modules if known.partition(".")[0] == _PACKAGE]:
            del sys.modules[known]


def _root() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    return Path(spec.submodule_search_locations[0])
