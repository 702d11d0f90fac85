from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.supervise.job import SlurmCallFailed, hostnames


def test_slurm_is_asked_for_the_names_in_a_list_and_not_for_a_single_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hostnames("(null)") == hostnames("") == ()
    assert hostnames("gpu-07.cluster") == ("gpu-07.cluster",)
    for names in ("n[1-3]", "a,b"):
        with pytest.raises(SlurmCallFailed, match="scontrol"):
            hostnames(names)
