from __future__ import annotations

import json

import msgspec
import pytest

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import (
    Version,
    read_chain,
    read_version,
    version_path,
    versions,
    with_ancestors,
    write_version,
)
from hpcrl.run.disk import FileRecord


def make(folder, number, previous=None, **changes):
    version = Version(
        version=number,
        hash=f"h{number}",
        dtype="bfloat16",
        attempt=1,
        previous=previous,
        previous_hash="" if previous is None else f"h{previous}",
        tensors={"a": f"d{number}"},
        files=[],
    )
    version = msgspec.structs.replace(version, **changes)
    version_path(folder, number).mkdir(parents=True)
    write_version(version_path(folder, number), version, durable=True)
    return version


def test_a_record_reads_back(tmp_path):
    made = make(tmp_path, 7, files=[FileRecord("model.safetensors", 3, "xxh3_128:00")])
    assert read_version(tmp_path, 7) == made
    assert (made.kind, made.size) == ("base", 3)
    assert versions(tmp_path) == [7]
    assert versions(tmp_path / "nowhere") == []


def test_numbers_beyond_the_width_of_names_are_in_order(tmp_path):
    for number in (9, 1_000_000, 999_999):
        make(tmp_path, number)
    assert versions(tmp_path) == [9, 999_999, 1_000_000]


def test_a_record_of_another_layout_or_number_or_with_a_changed_letter_is_refused(tmp_path):
    make(tmp_path, 1, layout=99)
    with pytest.raises(WeightsError, match="has layout 99, this hpcrl knows 1"):
        read_version(tmp_path, 1)
    make(tmp_path, 2)
    version_path(tmp_path, 2).rename(version_path(tmp_path, 3))
    with pytest.raises(WeightsError, match="is the record of version 2"):
        read_version(tmp_path, 3)
    path = version_path(tmp_path, 3) / "version.json"
    path.write_text(path.read_text().replace("h2", "h9"))
    with pytest.raises(WeightsError, match=r"v000003/version\.json is damaged"):
        read_version(tmp_path, 3)
    path.write_text(json.dumps({"version": 3}))
    with pytest.raises(WeightsError, match="damaged"):
        read_version(tmp_path, 3)


def test_a_chain_goes_from_its_base_or_from_what_is_there(tmp_path):
    for number, previous in ((0, None), (1, 0), (2, None), (4, 2), (5, 4)):
        make(tmp_path, number, previous)
    assert [link.version for link in read_chain(tmp_path, 5)] == [2, 4, 5]
    assert [link.version for link in read_chain(tmp_path, 5, built_on="h4")] == [5]
    assert [link.version for link in read_chain(tmp_path, 5, built_on="h0")] == [2, 4, 5]
    (version_path(tmp_path, 2) / "version.json").unlink()
    for number in (4, 5):
        with pytest.raises(WeightsError, match=r"^there is no whole policy version in .*v000002"):
            read_chain(tmp_path, number)
    assert read_chain(tmp_path, 1)


def test_a_chain_that_runs_in_a_circle_is_refused(tmp_path):
    make(tmp_path, 1, 2)
    make(tmp_path, 2, 1)
    with pytest.raises(WeightsError, match="is a patch on version 2"):
        read_chain(tmp_path, 1)


def test_ancestors_as_far_as_they_are_there():
    previous = {0: None, 1: 0, 2: 1, 5: 4}
    assert with_ancestors({2}, previous) == {0, 1, 2}
    assert with_ancestors({5}, previous) == {5}
    assert with_ancestors({3}, previous) == set()
