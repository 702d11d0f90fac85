"""Which variables of a shell may reach a job and its steps.

Slurm reads options from the environment: what a person's shell, an outer job or ``sbatch`` itself leaves there would be
taken for options of a step. So everything is dropped that does not say where the job is.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

DROPPED = (
    "SLURM_*",
    "SBATCH_*",
    "SRUN_*",
    "SALLOC_*",
    "_SLURM_SPANK_*",
    "SPANK_*",
    "PMI_*",
    "PMI2_*",
    "PMIX_*",
    "OMPI_*",
    "PRTE_*",
)
# Inside a job: srun finds its job by these, and Python reads the allocation from them.
KEPT_IN_JOB = (
    "SLURM_CONF",
    "SLURM_CLUSTER_NAME",
    "SLURM_WORKING_CLUSTER",
    "SLURM_JOB_*",
    "SLURM_JOBID",
    "SLURM_HET_SIZE",
    "SLURM_NODELIST",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_*_ON_NODE",
    "SLURM_RESTART_COUNT",
    "SLURM_SUBMIT_*",
    "SLURM_TOPOLOGY_*",
)
# Outside a job: how the commands reach the controller.
KEPT_TO_SUBMIT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")


def is_scheduler_variable(name: str) -> bool:
    """Whether a variable belongs to Slurm or to a process launcher."""
    return _matches(name, DROPPED)


def submit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for ``sbatch``, which hands it on to the job: nothing of an outer job, no options."""
    return {name: value for name, value in environ.items() if not is_scheduler_variable(name) or _matches(name, KEPT_TO_SUBMIT)}


def scrub_lines() -> list[str]:
    """Shell lines that do the same inside the job, where the job's own place is kept."""
    return [
        "for name in $(compgen -e); do",
        '  case "$name" in',
        f"    {'|'.join(KEPT_IN_JOB)}) ;;",
        f'    {"|".join(DROPPED)}|PYTHONPATH|PYTHONHOME) unset "$name" ;;',
        "  esac",
        "done",
    ]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
