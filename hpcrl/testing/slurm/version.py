"""Which Slurm is installed, and everything in which its versions differ for us."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcrl.testing.slurm.programs import output_of


class SlurmVersion(NamedTuple):
    """Year and month of a Slurm release: ``22.05`` is (22, 5)."""

    year: int
    month: int

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02d}"

    @property
    def cgroup_plugin(self) -> str:
        """The setting that keeps Slurm away from cgroups: it came with 24.05, and before it v1 is left alone unless used."""
        return "disabled" if self >= (24, 5) else "cgroup/v1"


def parse_version(text: str) -> SlurmVersion:
    """Read the answer of ``slurmctld -V``, such as ``slurm-wlm 22.05.8``.

    Raises:
        ValueError: there is no version in it.
    """
    found = re.search(r"\b(\d\d)\.(\d\d)\b", text)
    if found is None:
        raise ValueError(f"no Slurm version in {text!r}")
    return SlurmVersion(int(found[1]), int(found[2]))


def installed_version() -> SlurmVersion:
    """Ask ``slurmctld -V``."""
    return parse_version(output_of(["slurmctld", "-V"], seconds=10))
