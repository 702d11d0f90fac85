"""Everything of submitit that is private and used here. Written for one version, which a test guards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = "1.5.4"


def sbatch_lines(parameters: Mapping[str, Any], further: Mapping[str, Any]) -> list[str]:
    """The ``#SBATCH`` lines of one component.

    Args:
        parameters: arguments of submitit's ``_make_sbatch_string``.
        further: options that it has no argument for, or sets otherwise; True stands for an option without a value.
    """
    # Takes a third of a second to import.
    from submitit.slurm.slurm import _make_sbatch_string

    text: str = _make_sbatch_string(
        command="true",
        # Only names output files, which `further` names too.
        folder=".",
        use_srun=False,
        stderr_to_stdout=True,
        # Where accounting checks these keys, an unknown one is refused.
        wckey=None,
        additional_parameters=dict(further),
        **parameters,
    )
    return [line for line in text.splitlines() if line.startswith("#SBATCH ")]
