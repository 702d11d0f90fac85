"""Where runs are kept, and the run of a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hpcrl.config.nearest import nearest
from hpcrl.launch.shell import expand
from hpcrl.launch.site import Site, known_sites, load_site
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed

LOCAL = Path("runs")


def root_for_new(site: Site | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where a new run goes: the first folder of ``$HPCRL_RUNS``, the site's ``scratch``, or ``runs``."""
    named = _named(environ)
    if named:
        return named[0]
    return Path(expand(site.scratch, environ)) if site is not None and site.scratch else LOCAL


def roots(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Folders in which runs are looked for, in order; those that are not there are left out."""
    given: set[Path] = set()
    for path in (*_named(environ), LOCAL, *_scratches(environ)):
        if path.is_dir() and path.resolve() not in given:
            given.add(path.resolve())
            yield path


def find_run(name: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> RunDirectory:
    """The run in a directory, or the run whose directory has that name in one of the roots.

    Raises:
        CheckFailed: there is none; names the nearest.
    """
    text = os.fspath(name)
    path = Path(text)
    if (path / "run.json").exists() or "/" in text or text in ("", ".", ".."):
        return RunDirectory.open(path)
    for root in roots(environ):
        if (root / text / "run.json").exists():
            return RunDirectory.open(root / text)
    if path.exists():
        return RunDirectory.open(path)
    looked = [str(root) for root in roots(environ)]
    known = [run.path.name for root in roots(environ) for run in runs_in(root)]
    raise CheckFailed(
        [
            f"{text!r} is not the directory of a run, and no run of that name is in {', '.join(looked) or 'runs'} "
            f"($HPCRL_RUNS names further folders); {nearest(text, known)}"
        ]
    )


def runs_in(root: Path) -> list[RunDirectory]:
    """Runs whose directories lie in a folder, newest first; a damaged one is left out."""
    found = []
    for marker in root.glob("*/run.json"):
        with suppress(CheckFailed):
            found.append(RunDirectory.open(marker.parent))
    # Ids begin with the time.
    return sorted(found, key=lambda run: run.run_id, reverse=True)


def _named(environ: Mapping[str, str]) -> list[Path]:
    return [Path(part) for part in environ.get("HPCRL_RUNS", "").split(os.pathsep) if part]


def _scratches(environ: Mapping[str, str]) -> Iterator[Path]:
    for file in known_sites(environ).values():
        # What is wrong with a profile is said when it is used.
        with suppress(CheckFailed):
            site = load_site(file)
            if site.scratch:
                yield Path(expand(site.scratch, environ))
