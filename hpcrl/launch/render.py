"""The batch scripts of a run: of its main job, and of each job that joins it. Pure: a layout, a site, a place, to text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.launch.environment import scrub_lines
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.shell import quote
from hpcrl.launch.site import Site
from hpcrl.launch.submitit_compat import sbatch_lines
from hpcrl.run.errors import CheckFailed

LOGS = "slurm"
SUPERVISOR = "hpcrl.supervise.supervisor"
JOINER = "hpcrl.supervise.joiner"
# Later components of a heterogeneous job have no batch step that could use these.
_OF_THE_LEADER = ("--output", "--error", "--open-mode", "--signal")
# Compilers' caches and Hugging Face's, but for the models themselves, which stay where they were loaded.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "HF_MODULES_CACHE": "hf_modules",
    "HF_DATASETS_CACHE": "hf_datasets",
    "HF_ASSETS_CACHE": "hf_assets",
    "HF_XET_CACHE": "hf_xet",
}


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What a script says of the run itself.

    Attributes:
        run: the run directory; its folder ``slurm`` must be there before the job starts, or Slurm drops the output.
        code: folders that go on PYTHONPATH, the first one with the run's copy of hpcrl.
        python: prefix of the environment that submits; used where the site names none.
        signal_s: time before the limit at which the supervisor is told; must hold a save.
        requeue: Slurm may put the job back into the queue.
        tracking_uri: MLflow server, or None for a database in the run directory.
    """

    run: Path
    run_id: str
    name: str
    code: tuple[Path, ...]
    python: Path
    signal_s: int = 120
    requeue: bool = True
    tracking_uri: str | None = None

    @property
    def tag(self) -> str:
        """The job's comment, by which it is found again."""
        return f"hpcrl:{self.run_id}"

    def tag_of(self, component: Component) -> str:
        """Comment of the job that the component is in."""
        return f"{self.tag}:{component.name}" if component.joins else self.tag

    def name_of(self, component: Component) -> str:
        """Name of the job that the component is in."""
        return f"{self.name}-{component.name}" if component.joins else self.name

    def to_json(self) -> str:
        """For the run directory, whose own path is not in it."""
        value = {
            "name": self.name,
            "run_id": self.run_id,
            "code": [str(folder) for folder in self.code],
            "python": str(self.python),
            "signal_s": self.signal_s,
            "requeue": self.requeue,
            "tracking_uri": self.tracking_uri,
        }
        return json.dumps(value, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, run: Path) -> JobFacts:
        """Back from :meth:`to_json`; ``CheckFailed`` if the text says no such facts."""
        try:
            value = json.loads(text)
            code, python = tuple(map(Path, value.pop("code"))), Path(value.pop("python"))
            return cls(run=run, code=code, python=python, **value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckFailed([f"no facts of a job: {error!r}"]) from error


def render_script(layout: Layout, site: Site, job: JobFacts) -> str:
    """The whole script of the main job, ending in a newline.

    Raises:
        CheckFailed: a path of the run cannot be written so that Slurm reads it right.
    """
    return _script(layout, layout.main, site, job, f"-m {SUPERVISOR} {shlex.quote(str(job.run))}", "supervisor")


def render_joined(layout: Layout, component: Component, site: Site, job: JobFacts) -> str:
    """The script of a component that is a job of its own; errors as :func:`render_script`."""
    arguments = f"-m {JOINER} {shlex.quote(str(job.run))} {shlex.quote(component.name)}"
    return _script(layout, [component], site, job, arguments, "joiner")


def render_all(layout: Layout, site: Site, job: JobFacts) -> dict[str, str]:
    """Every script by its file name in ``RUN/slurm``, the main job's last; errors as :func:`render_script`."""
    joined = {f"batch-{item.name}.sh": render_joined(layout, item, site, job) for item in layout.joined}
    return {**joined, "batch.sh": render_script(layout, site, job)}


def _script(layout: Layout, components: Sequence[Component], site: Site, job: JobFacts, arguments: str, what: str) -> str:
    problems = path_problems(site, job)
    if problems:
        raise CheckFailed(problems)
    lines = ["#!/bin/bash"]
    for index, component in enumerate(components):
        if index:
            lines.append("#SBATCH hetjob")
        lines += _directives(layout, component, site, job, leads=index == 0)
    lines += ["", f"# {job.name_of(components[0])}, run {job.run_id}: starts the {what}, which does all else."]
    lines += _body(site, job, arguments)
    return "\n".join(lines) + "\n"


def path_problems(site: Site, job: JobFacts) -> list[str]:
    """What paths and names hold that Slurm, PYTHONPATH or a container would misread."""
    paths = {"run directory": job.run, "Python environment": job.python} | {f"code {path}": path for path in job.code}
    problems = [
        f"{what} {str(path)!r} holds a line break or one of \\ : %, which Slurm or PYTHONPATH would misread; choose another"
        for what, path in paths.items()
        if any(character in str(path) for character in "\n\r\\:%")
    ]
    if site.container.kind != "none" and "," in str(job.run):
        problems.append(f"run directory {str(job.run)!r} holds a comma, which would split a container's mounts; choose another")
    if any(ord(character) < 32 for character in job.name + job.run_id):
        problems.append(f"name {job.name!r} or id {job.run_id!r} of the run holds a control character")
    return problems


def slurm_log(run: Path) -> str:
    """Pattern of the batch script's own log, as Slurm reads it: ``RUN/slurm/JOB.log``."""
    return f"{run / LOGS}/%j.log"


def gpus_flag(site: Site, count: int) -> str:
    """Value of ``--gpus-per-node``: ``4``, or ``h100:4`` where the site names a type."""
    kind = site.gres.removeprefix("gpu").removeprefix(":")
    return f"{kind}:{count}" if kind and count else str(count)


def _directives(layout: Layout, component: Component, site: Site, job: JobFacts, *, leads: bool) -> list[str]:
    tasks = component.ignitors_per_node
    parameters: dict[str, Any] = {
        "job_name": job.name_of(component),
        "comment": job.tag_of(component),
        "time": layout.minutes,
        "nodes": component.nodes,
        "ntasks_per_node": tasks,
        "cpus_per_task": component.cpus_per_node // tasks,
        "partition": component.partition or None,
        "account": site.account or None,
        "qos": site.qos or None,
        "constraint": _constraint(site, component),
        "exclusive": True if site.exclusive else None,
        "mem": "0" if site.exclusive else f"{int(component.memory_gib * 1024)}M" if component.memory_gib else None,
        "gpus_per_node": gpus_flag(site, component.gpus_per_node) if component.gpus_per_node else None,
    }
    further: dict[str, Any] = {
        "output": slurm_log(job.run),
        "signal": f"B:USR1@{job.signal_s}",
        "requeue" if job.requeue else "no-requeue": True,
    }
    if layout.no_kill:
        further["no-kill"] = True
    lines = sbatch_lines(parameters, further)
    if not leads:
        lines = [line for line in lines if not line.removeprefix("#SBATCH ").startswith(_OF_THE_LEADER)]
    return lines + [f"#SBATCH {line}" for line in site.sbatch]


def _constraint(site: Site, component: Component) -> str | None:
    # It is about GPU nodes; a partition of its own for the others knows no such feature.
    return site.constraint or None if component.gpus_per_node or not site.cpu_partition else None


def _body(site: Site, job: JobFacts, arguments: str) -> list[str]:
    prefix = site.python or str(job.python)
    code = ":".join(map(str, job.code))
    return [
        "# What comes before Python listens must not end the job; the supervisor asks the controller what it missed.",
        "trap '' USR1 TERM",
        "# Options of an outer job or of a shell must not reach the steps.",
        *scrub_lines(),
        # A batch job's environment may lack it; a profile's paths may use it.
        'export USER="${USER:-$SLURM_JOB_USER}"',
        *_modules(site),
        *_caches(site),
        *(f"export {name}={quote(value)}" for name, value in site.environment.items()),
        f'export VIRTUAL_ENV={quote(prefix)} PATH={quote(prefix + "/bin")}:"$PATH"',
        # Without it, Python would take a folder `hpcrl` where the job was submitted before the run's copy.
        f'export PYTHONPATH={shlex.quote(code)}"${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONSAFEPATH=1',
        f"exec {quote(prefix + '/bin/python')} {arguments}",
    ]


def _modules(site: Site) -> list[str]:
    if not site.modules:
        return []
    load = "module load " + " ".join(map(quote, site.modules)) + " || exit 1"
    if site.module_init:
        return [f"type module >/dev/null 2>&1 || . {quote(site.module_init)}", load]
    return [load]


def _caches(site: Site) -> list[str]:
    if not site.local_cache:
        return []
    exports = _in_lines(_CACHES)
    return [f'cache={quote(site.local_cache)}/"$SLURM_JOB_ID"', *exports]


def _in_lines(caches: Mapping[str, str]) -> list[str]:
    items = [f'{name}="$cache/{folder}"' for name, folder in caches.items()]
    return ["export " + " ".join(items[start : start + 3]) for start in range(0, len(items), 3)]
