"""What is wrong with the values of a site profile: what Slurm would misread, and what would reach beyond its line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcrl.launch.duration import minutes_of
from hpcrl.launch.environment import is_scheduler_variable

if TYPE_CHECKING:
    from hpcrl.launch.site import Container, Site

_CONTROL = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:@-]*")
_PARTITIONS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(,[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_GRES = re.compile(r"gpu(:[A-Za-z0-9_.-]+)?")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=.*)?")
# What hpcrl decides for each job; a second word on it would undo the layout.
_OURS = re.compile(
    "account|array|batch|chdir|comment|constraint|cpus-per-gpu|cpus-per-task|error|exclusive|export|gpus|gpus-per-node|"
    "gpus-per-socket|gpus-per-task|gres|hetjob|hold|job-name|mem|mem-per-cpu|mem-per-gpu|no-kill|no-requeue|nodes|ntasks|"
    "ntasks-per-gpu|ntasks-per-node|open-mode|output|parsable|partition|qos|requeue|signal|test-only|time|wait|wrap"
)


def site_problems(site: Site) -> list[str]:
    """A sentence for each value that is refused, with its key."""
    problems = [
        f"{key}: {text!r} holds a line break or control character" for key, text in _texts(site) if _CONTROL.search(text)
    ]
    for key in ("account", "qos"):
        if getattr(site, key) and not _WORD.fullmatch(getattr(site, key)):
            problems.append(f"{key}: {getattr(site, key)!r} is no Slurm name")
    for key in ("partition", "cpu_partition"):
        if getattr(site, key) and not _PARTITIONS.fullmatch(getattr(site, key)):
            problems.append(f"{key}: {getattr(site, key)!r} is no partition, nor partitions joined with commas")
    problems += [
        f"preemptible_partitions: {name!r} is no partition" for name in site.preemptible_partitions if not _WORD.fullmatch(name)
    ]
    if not _GRES.fullmatch(site.gres):
        problems.append(f"gres: {site.gres!r} must be gpu or gpu:TYPE, such as gpu:h100")
    try:
        minutes_of(site.time)
    except ValueError as error:
        problems.append(f"time: {error}")
    problems += [
        f"{key}: {path!r} must be an absolute path"
        for key in ("scratch", "local_cache", "python", "module_init")
        if (path := getattr(site, key)) and not path.startswith(("/", "$"))
    ]
    problems += _environment_problems(site.environment)
    problems += [problem for line in site.sbatch for problem in _option_problems(line)]
    problems += _container_problems(site.container)
    for key in ("node", "cpu_node"):
        problems += [
            f"{key}.{name}: {value} must be at least 0"
            for name, value in dataclasses.asdict(getattr(site, key)).items()
            if value < 0
        ]
    return problems


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))


def _environment_problems(environment: Mapping[str, str]) -> Iterator[str]:
    for name in environment:
        if not _ENVIRONMENT.fullmatch(name):
            yield f"environment.{name}: no name of a variable"
        elif is_scheduler_variable(name):
            yield f"environment.{name}: the scheduler's own variables cannot be set; use the profile's keys or sbatch"
        elif name == "PYTHONPATH":
            yield "environment.PYTHONPATH: hpcrl sets it to the code of the run; install packages into the environment instead"


def _option_problems(line: str) -> Iterator[str]:
    match = _OPTION.fullmatch(line)
    if match is None:
        yield f"sbatch: {line!r} must be one option as --name or --name=value, without #SBATCH"
    elif match["name"] == "array":
        yield f"sbatch: {line!r} is refused: Slurm takes no arrays of heterogeneous jobs; a sweep submits its runs one by one"
    elif _OURS.fullmatch(match["name"]):
        yield f"sbatch: {line!r} is refused: hpcrl sets --{match['name']} itself, from the layout and this profile's keys"


def _container_problems(container: Container) -> Iterator[str]:
    if container.kind == "none":
        if container.image or container.mounts or container.options:
            yield 'container.kind: it is "none" and the container has an image, mounts or options; say pyxis or apptainer'
        return
    if not container.image:
        yield f"container.image: {container.kind} needs one"
    for mount in container.mounts:
        parts = mount.split(":")
        if "," in mount or len(parts) > 3 or not all(parts):
            yield f"container.mounts: {mount!r} must be source:target or source:target:flags, without commas"
