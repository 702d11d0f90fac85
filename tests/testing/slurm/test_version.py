from __future__ import annotations

import pytest

from hpcrl.testing.slurm.version import SlurmVersion, parse_version


@pytest.mark.parametrize(
    ("text", "version", "plugin"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5), "cgroup/v1"),
        ("slurm-wlm 23.11.4", (23, 11), "cgroup/v1"),
        ("slurm 24.05.0-0rc1", (24, 5), "disabled"),
        ("slurm-wlm 24.11.5", (24, 11), "disabled"),
    ],
)
def test_the_version_decides_how_cgroups_are_left_alone(text: str, version: tuple[int, int], plugin: str):
    parsed = parse_version(text)
    assert parsed == version
    assert parsed.cgroup_plugin == plugin


def test_a_version_reads_as_slurm_writes_it():
    assert str(SlurmVersion(22, 5)) == "22.05"


def test_another_program_is_refused():
    with pytest.raises(ValueError, match="no Slurm version in 'nonsense'"):
        parse_version("nonsense")
