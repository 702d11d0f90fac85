"""The code that a run keeps, so that a queued job runs what was submitted and not what was edited later."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcrl
from hpcrl.recipe import Recipe

CODE = "code"
# Of folders that hold no package themselves; each goes on PYTHONPATH.
FOLDERS = "path"
FILES = "files"
_COPIERS = 8
MOST_BYTES = 64 << 20
_FUNCTION_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_SKIPPED = ("__pycache__", ".*", "*.pyc", "node_modules", "*.egg-info")


@dataclass(frozen=True, kw_only=True)
class Code:
    """What is to be kept.

    Attributes:
        packages: folders and files by the name under which they are imported.
        folders: further folders for PYTHONPATH.
        files: files that the recipe names functions of, by their name in the copy.
    """

    packages: Mapping[str, Path]
    folders: tuple[Path, ...] = ()
    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)


def code_of(recipe_folder: Path, given: Iterable[Path]) -> tuple[Code, list[str]]:
    """hpcrl, the folders given, and what was imported from outside of the environment; and what is wrong with that.

    Call it when the recipe is built and its roles are checked, since it goes by what is imported then.
    """
    problems: list[str] = []
    packages = {"hpcrl": Path(hpcrl.__file__).parent}
    folders: list[Path] = []
    for folder in given:
        path = folder.absolute()
        if not path.is_dir():
            problems.append(f"--code {folder}: there is no such folder")
        elif (path / "__init__.py").exists():
            packages[path.name] = path
        else:
            folders.append(path)
    inside = [*folders, *(path.parent for name, path in packages.items() if name != "hpcrl")]
    for name, path in _imported_from_outside(recipe_folder):
        if not any(path.is_relative_to(folder) for folder in inside):
            packages.setdefault(name, path)
    problems += [
        f"{path} holds more than {MOST_BYTES >> 20} MiB and would be copied into the run; name a smaller folder with --code"
        for path in (*(path for name, path in packages.items() if name != "hpcrl"), *folders)
        if _is_too_big(path)
    ]
    return Code(packages=packages, folders=tuple(folders)), problems


def with_own_files(recipe: Recipe, code: Code, run: Path) -> tuple[Recipe, Code]:
    """The recipe with functions named as ``path/to/file.py:function`` pointing at the run's copies of those files."""
    files: dict[str, Path] = {}

    def moved(text: str) -> str:
        match = _FUNCTION_FILE.fullmatch(text)
        path = Path(match["file"]).expanduser().absolute() if match else None
        if match is None or path is None or not path.is_file():
            return text
        name = path.name
        while files.get(name, path) != path:
            name = f"_{name}"
        files[name] = path
        return f"{run / CODE / FILES / name}:{match['name']}"

    return _mapped(recipe, moved), dataclasses.replace(code, files=files)


def write_code(code: Code, run: Path) -> None:
    """Copy it into the run directory; ``OSError`` where that fails."""
    target = run / CODE
    target.mkdir(exist_ok=True)
    copies: list[tuple[str, str]] = []
    for name, path in code.packages.items():
        copies += _folders(path, target / name) if path.is_dir() else [(str(path), str(target / f"{name}.py"))]
    for source, folder in zip(code.folders, paths_of(code, run)[1:], strict=True):
        copies += _folders(source, folder)
    if code.files:
        (target / FILES).mkdir(exist_ok=True)
    copies += [(str(path), str(target / FILES / name)) for name, path in code.files.items()]
    # A parallel file system answers each call late, but many at a time.
    with ThreadPoolExecutor(_COPIERS) as pool:
        list(pool.map(lambda pair: shutil.copy(*pair), copies))


def _folders(source: Path, target: Path) -> list[tuple[str, str]]:
    """Make the folders of the copy; returns the files that go into them, each with its place."""
    files: list[tuple[str, str]] = []
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_SKIPPED), copy_function=lambda *pair: files.append(pair))
    return files


def paths_of(code: Code, run: Path) -> tuple[Path, ...]:
    """What goes on PYTHONPATH."""
    return (run / CODE, *(run / CODE / FOLDERS / f"{index}-{path.name}" for index, path in enumerate(code.folders)))


def freeze() -> str:
    """The environment's packages as ``pip freeze`` writes them, from the names of their folders alone."""
    found = set()
    for entry in sys.path:
        for path in Path(entry).glob("*.dist-info") if entry else ():
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            found.add(f"{name}=={version}")
    return f"# Python {platform.python_version()} at {sys.prefix}\n" + "".join(f"{line}\n" for line in sorted(found))


def _imported_from_outside(recipe_folder: Path) -> Iterator[tuple[str, Path]]:
    own = Path(hpcrl.__file__).parent
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    known = [Path(path).resolve() for path in (*installed, *site.getsitepackages(), site.getusersitepackages())]
    for name in sorted(sys.modules):
        file = getattr(sys.modules[name], "__file__", None)
        # What is imported by its path (the recipe, a file with a reward) cannot be found by its name and is kept otherwise.
        if "." in name or not file or name == "__main__" or name.startswith(("hpcrl_recipe", "_reward_", "__editable__")):
            continue
        path = Path(file).resolve()
        inside = any(path.is_relative_to(folder) for folder in (*known, own.resolve(), recipe_folder.resolve()))
        if path.suffix == ".py" and not inside and not {"site-packages", "dist-packages"} & set(path.parts):
            yield name, path.parent if path.name == "__init__.py" else path


def _is_too_big(path: Path) -> bool:
    size = 0
    for folder, names, files in os.walk(path):
        names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
        size += sum(os.path.getsize(os.path.join(folder, file)) for file in files if os.path.exists(os.path.join(folder, file)))
        if size > MOST_BYTES:
            return True
    return False


def _mapped(value: Any, change: Any) -> Any:
    """The value rebuilt with every text inside it changed; what does not change stays the same object."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        new = {name: _mapped(item, change) for name, item in held.items()}
        return dataclasses.replace(value, **new) if new != held else value
    return value
