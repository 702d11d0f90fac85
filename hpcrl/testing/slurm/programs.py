"""Finding, installing and calling the programs of Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from hpcrl.run.errors import CheckFailed, HpcrlError

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
ACCOUNTING_PACKAGES = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
INSTALL_S = 300.0
# Debian keeps daemons where a user's PATH often does not look.
SEARCH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# Slurm's commands read these as options, so those of an allocation around us must not reach them.
OPTION_PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "PMIX_", "PMI_")


class CommandFailed(HpcrlError):
    """A program of Slurm ended with an error, or not in time."""


def search_path() -> str:
    """PATH with the folders of daemons."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *SEARCH))


def clean_environment() -> dict[str, str]:
    """This process's environment without what Slurm's commands would take as options."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OPTION_PREFIXES)}
    return {**kept, "PATH": search_path()}


def output_of(command: Sequence[str], *, seconds: float, env: Mapping[str, str] | None = None) -> str:
    """What a program prints.

    Args:
        seconds: deadline.
        env: added to :func:`clean_environment`.

    Raises:
        CommandFailed: not installed, an exit code that is not 0 (with what it said), or the deadline passed.
    """
    try:
        done = subprocess.run(
            command,
            env={**clean_environment(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"`{command[0]}` is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"`{' '.join(command)}` gave no answer in {seconds:g} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise CommandFailed(f"`{' '.join(command)}` ended with code {done.returncode}: {said}")
    return done.stdout


def missing_packages(*, accounting: bool) -> tuple[str, ...]:
    """Debian packages whose programs are not there."""
    wanted = {**PACKAGES, **(ACCOUNTING_PACKAGES if accounting else {})}
    return tuple(sorted({package for name, package in wanted.items() if shutil.which(name, path=search_path()) is None}))


def install(packages: Sequence[str]) -> None:
    """Install Debian packages with apt.

    Raises:
        CheckFailed: not root, or no apt; says what to install.
        CommandFailed: apt could not.
    """
    command = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *packages]
    if shutil.which("apt-get") is None:
        raise CheckFailed([f"a Slurm cluster needs the programs of Debian's packages {', '.join(packages)}; install them"])
    if os.geteuid() != 0:
        raise CheckFailed([f"programs are missing, and only root can install them: sudo {' '.join(command)}"])
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        output_of(command, seconds=INSTALL_S, env=quiet)
    except CommandFailed:
        # A fresh image has no package lists, an old one has outdated ones.
        output_of(["apt-get", "update"], seconds=INSTALL_S, env=quiet)
        output_of(command, seconds=INSTALL_S, env=quiet)
