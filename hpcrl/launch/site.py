"""Site profiles: everything that a cluster wants said and a recipe must not know."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import hpcrl
from hpcrl.config.nearest import nearest
from hpcrl.config.table import read_table
from hpcrl.launch.site_check import site_problems
from hpcrl.run.errors import CheckFailed

DEFAULT = "default"
PACKAGED = Path(hpcrl.__file__).parents[1] / "slurm" / "profiles"


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What one node of a partition has, for planning before Slurm gives nodes; 0 = not known, then not checked."""

    gpus: int = 0
    cpus: int = 0
    memory_gib: float = 0.0
    gpu_memory_gib: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container that roles run in. The supervisor runs outside of it, because it calls ``srun``.

    Attributes:
        image: what ``--container-image`` (pyxis) or ``apptainer exec`` takes.
        mounts: ``source:target[:flags]``; the run directory is always mounted at its own path.
        python: interpreter inside the container.
        options: further flags of ``srun`` (pyxis) or of ``apptainer exec``.
    """

    kind: Literal["none", "pyxis", "apptainer"] = "none"
    image: str = ""
    mounts: tuple[str, ...] = ()
    python: str = "python3"
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster as its users see it. ``$NAME`` in paths and in the environment is expanded inside the job.

    Attributes:
        partition: where jobs go.
        cpu_partition: where components without GPUs go; empty = ``partition``.
        preemptible_partitions: those whose jobs Slurm may preempt.
        gres: how GPUs are called: ``gpu``, or ``gpu:TYPE``.
        time: default time limit, as Slurm writes it.
        exclusive: whole nodes are taken.
        module_init: file that defines ``module`` where a batch job lacks it.
        scratch: folder on the parallel file system for runs that name no place.
        local_cache: folder on every node's own disk; compilers' caches go to ``JOB-ID`` below it. Empty = as they come.
        python: prefix of the (virtual) environment that runs hpcrl outside containers; empty = the submitting one.
        sbatch: further options of ``sbatch``, such as ``--reservation=x``.
        node: what a node of ``partition`` has.
        cpu_node: what a node of ``cpu_partition`` has; where it states no cores, ``node`` without its GPUs.
    """

    name: str = ""
    partition: str = ""
    cpu_partition: str = ""
    preemptible_partitions: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = "gpu"
    time: str = "1:00:00"
    exclusive: bool = False
    modules: tuple[str, ...] = ()
    module_init: str = ""
    scratch: str = ""
    local_cache: str = ""
    python: str = ""
    sbatch: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    container: Container = field(default_factory=Container)
    node: NodeShape = field(default_factory=NodeShape)
    cpu_node: NodeShape = field(default_factory=NodeShape)

    def to_json(self) -> str:
        """The profile as JSON: what a run keeps, so that later edits of the file do not reach it."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "site.json") -> Site:
        """Back from :meth:`to_json`; ``CheckFailed`` if the text is no profile."""
        try:
            table = json.loads(text)
        except ValueError as error:
            raise CheckFailed([f"{source} is not JSON: {error}"]) from error
        return _checked(table, source)


def load_site(path: Path) -> Site:
    """The profile in a TOML file, named after the file.

    Raises:
        CheckFailed: the file cannot be read, or any of its keys or values is refused; every one is named.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckFailed([f"site profile {path} cannot be read: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckFailed([f"site profile {path} is not TOML: {error}"]) from error
    return _checked({"name": path.stem, **table}, str(path))


def find_site(name: str | None, environ: Mapping[str, str] = os.environ) -> Site:
    """The profile of a name, or in the file of a path; without a name, the profile ``default``.

    Raises:
        CheckFailed: there is none; lists what there is and where it was looked for.
    """
    if name is not None and (name.endswith(".toml") or "/" in name):
        return load_site(Path(name))
    known = known_sites(environ)
    wanted = name or DEFAULT
    if wanted in known:
        return load_site(known[wanted])
    folders = ", ".join(map(str, site_folders(environ)))
    if name is None:
        raise CheckFailed(
            [
                f"no --site is named and there is no profile {DEFAULT}.toml in {folders}; name one of {', '.join(known)}, or "
                f"write one (start from a file in {PACKAGED})"
            ]
        )
    raise CheckFailed([f"there is no site profile {name!r} in {folders}; {nearest(name, known)}"])


def known_sites(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """File of every profile by name; where two folders have one name, the first folder's counts."""
    known: dict[str, Path] = {}
    for folder in site_folders(environ):
        for path in sorted(folder.glob("*.toml")):
            known.setdefault(path.stem, path)
    return known


def site_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where profiles are looked for, in order: ``$HPCRL_SITES``, the user's own, those that come with hpcrl."""
    named = [Path(part) for part in environ.get("HPCRL_SITES", "").split(os.pathsep) if part]
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    return [*named, config / "hpcrl" / "sites", PACKAGED]


def _checked(table: Mapping[str, object], source: str) -> Site:
    problems: list[str] = []
    site: Site = read_table(Site, table, problems)
    problems += site_problems(site)
    if problems:
        raise CheckFailed([f"{source}: {problem}" for problem in problems])
    return site
