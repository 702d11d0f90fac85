from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.run.errors import HpcrlError
from hpcrl.testing.slurm.processes import ProcessRef
from hpcrl.testing.slurm.record import Record, load_record
from hpcrl.testing.slurm.spec import ClusterSpec, Ports


def make(folder: Path) -> Record:
    mine = ProcessRef.of(os.getpid())
    assert mine is not None
    return Record(
        spec=ClusterSpec(folder=folder, nodes=2, accounting=True),
        ports=Ports(first=17_000),
        version="22.05",
        daemons={"slurmctld": mine},
        whole=True,
    )


def test_a_record_comes_back_as_it_was(tmp_path: Path):
    record = make(tmp_path)
    assert load_record(tmp_path) is None
    record.save()
    assert load_record(tmp_path) == record


def test_a_cluster_is_alive_only_whole(tmp_path: Path):
    record = make(tmp_path)
    assert record.are_alive()
    assert not replace(record, whole=False).are_alive()
    gone = replace(record.daemons["slurmctld"], start=0)
    assert not replace(record, daemons={**record.daemons, "n1": gone}).are_alive()


@pytest.mark.parametrize("text", ["", "{}", '{"spec": 1}', '{"spec": {"folder": "/x", "colour": 1}}'])
def test_another_file_of_that_name_is_refused_by_name(tmp_path: Path, text: str):
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(HpcrlError, match=r"cluster\.json is not the record of a test cluster"):
        load_record(tmp_path)
