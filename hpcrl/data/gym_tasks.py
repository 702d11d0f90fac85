"""One task of reasoning-gym without the hundred others: the whole package takes seconds to import, matplotlib too."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

_PACKAGE = "reasoning_gym"
_LOCK = threading.Lock()


class Registry(Protocol):
    """What is used of the package's registry."""

    @property
    def DATASETS(self) -> Mapping[str, Any]: ...  # noqa: D102

    def create_dataset(self, name: str, **settings: Any) -> Any: ...  # noqa: D102

    def get_score_answer_fn(self, name: str) -> Callable[[Any, Any], float]: ...  # noqa: D102


@cache
def registry_with(task: str) -> Registry:
    """The package's registry, with that task in it if there is one.

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
        whole: Any = importlib.import_module(f"{_PACKAGE}.factory")
        return whole  # type: ignore[no-any-return]


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


def _import_alone(name: str) -> _Alone | None:
    """Import a module inside empty parents; None where that does not work."""
    modules = _empty_parents(name)
    try:
        with _known(modules):
            # The registry and this one import each other, which works in one order only.
            importlib.import_module(f"{_PACKAGE}.coaching")
            importlib.import_module(name)
            return _Alone(importlib.import_module(f"{_PACKAGE}.factory"), modules)
    except (ImportError, AttributeError):
        return None


class _Alone:
    """A registry with the modules of one task, which a later import of the whole package does not see."""

    def __init__(self, registry: Any, modules: dict[str, ModuleType]) -> None:
        self._registry, self._modules = registry, modules

    @property
    def DATASETS(self) -> Mapping[str, Any]:
        return self._registry.DATASETS  # type: ignore[no-any-return]

    def create_dataset(self, name: str, **settings: Any) -> _Entries:
        with self.known():
            return _Entries(self._registry.create_dataset(name, **settings), self)

    def get_score_answer_fn(self, name: str) -> Callable[[Any, Any], float]:
        with self.known():
            score = self._registry.get_score_answer_fn(name)

        def scored(answer: Any, entry: Any) -> float:
            with self.known():
                return score(answer, entry)  # type: ignore[no-any-return]

        return scored

    @contextmanager
    def known(self) -> Iterator[None]:
        """Inside, its modules can import each other, which some do only when they are used."""
        with _LOCK:
            if _PACKAGE in sys.modules:
                # The whole package has been imported meanwhile, and will do.
                yield
                return
            with _known(self._modules):
                yield


class _Entries:
    """A dataset of the package."""

    def __init__(self, entries: Any, alone: _Alone) -> None:
        self._entries, self._alone = entries, alone

    def __getitem__(self, index: int) -> Any:
        with self._alone.known():
            return self._entries[index]


def _empty_parents(name: str) -> dict[str, ModuleType]:
    """The packages above a module, by name, which only know where their modules lie."""
    parts, folder = name.split("."), _root()
    made = {}
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(folder.joinpath(*parts[1:depth]))]
        made[package.__name__] = package
    return made


@contextmanager
def _known(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Inside, imports find these modules of the package; what is imported is added to them and forgotten by all others."""
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            modules[name] = sys.modules.pop(name)


def _root() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    return Path(spec.submodule_search_locations[0])
