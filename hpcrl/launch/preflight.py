"""Everything that can be known before the start, checked before the start, and all of it reported at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hpcrl.plan.allocation import Allocation
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.errors import CheckFailed, checked

# Logs, journals, the report and the tracker's database.
RECORDS_BYTES = 64 << 20


def preflight(recipe: Recipe, allocation: Allocation, run_directory: Path) -> Plan:
    """Check a new run: the plan on this allocation, every role's settings, and the place for the run directory.

    Returns:
        The plan as it would be; port blocks depend on the run id and are planned again at the start.

    Raises:
        CheckFailed: with every problem found.
    """
    problems: list[str] = []
    plan = checked(lambda: make_plan(recipe, allocation, "preflight"), problems)
    problems += role_problems(recipe)
    problems += place_problems(run_directory, needed_bytes(recipe))
    if problems or plan is None:
        raise CheckFailed(problems)
    return plan


def role_problems(recipe: Recipe) -> list[str]:
    """What is wrong with the settings of any role, with its group's name."""
    return [f"{name}: {problem}" for name, group in sorted(recipe.groups.items()) for problem in group.role.check(recipe)]


def needed_bytes(recipe: Recipe) -> int:
    """Space that the run directory needs at most [bytes]."""
    return RECORDS_BYTES + sum(group.role.disk_bytes(recipe) for group in recipe.groups.values())


def place_problems(run_directory: Path, bytes_needed: int) -> list[str]:
    """What speaks against a new run at this path: it is taken, cannot be written, or lacks space."""
    path = run_directory.absolute()
    if path.is_dir() and any(path.iterdir()):
        held = "the directory of another run" if (path / "run.json").exists() else "not empty"
        return [f"run directory {path} is {held}; choose another --run-dir, or continue that run with --resume"]
    if path.exists() and not path.is_dir():
        return [f"run directory {path} is a file; choose another --run-dir"]
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    problems = _write_problems(existing)
    free = shutil.disk_usage(existing).free
    if free < bytes_needed:
        problems.append(
            f"run directory {path} needs about {bytes_needed / 2**30:.1f} GiB and its file system has {free / 2**30:.1f} GiB "
            "free; choose another --run-dir"
        )
    return problems


def _write_problems(folder: Path) -> list[str]:
    probe = folder / f".hpcrl-probe-{os.getpid()}"
    try:
        probe.mkdir()
        try:
            (probe / "a").write_bytes(b"x" * 4096)
            (probe / "a").rename(probe / "b")
        finally:
            shutil.rmtree(probe, ignore_errors=True)
    except OSError as error:
        return [f"{folder} cannot be written ({error.strerror}); choose another --run-dir"]
    return []
