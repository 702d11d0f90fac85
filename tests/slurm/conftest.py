"""A real Slurm cluster for the tests of this folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.testing.slurm.cluster import Cluster
from hpcrl.testing.slurm.programs import missing_packages


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skips where Slurm is missing and cannot be installed."""
    missing = missing_packages(accounting=False)
    if missing and os.geteuid() != 0:
        pytest.skip(f"needs Debian's packages {', '.join(missing)}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder whose path is short enough for Slurm's sockets, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def slurm_cluster(slurm_installed: None) -> Iterator[Cluster]:
    """One cluster of six nodes with four GPUs each for all tests that ask for it; a test leaves no job behind."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder, Cluster(Path(folder) / "c") as cluster:
        yield cluster
