"""The whole loop with each way that weights may take: what is served is what was published, and it came that way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]

STEPS = 4


def check(ended: Any, way: str) -> None:
    assert ended.code == 0, ended.output
    published, served = ended.published(), ended.records("served")
    assert set(published) == set(range(STEPS + 1))
    assert all(record["hash"] == published[record["version"]] for record in served)
    came = {record["way"] for record in served if record["version"] > 1}
    assert came == {way}
    assert not ended.records("unserved")


@pytest.fixture(scope="module")
def reference(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launcher.in_process(tmp_path_factory.mktemp("disk") / "run", steps=STEPS)


@pytest.mark.parametrize("way", ["memory", "distributed", "tcp"])
def test_a_run_is_the_same_whichever_way_weights_take(launcher: Any, tmp_path: Path, reference: Any, way: str) -> None:
    ended = launcher.in_process(tmp_path / "run", steps=STEPS, inference__transport=way)
    check(ended, way)
    assert ended.computed() == reference.computed()
    assert ended.published() == reference.published()
    check(reference, "disk")


@pytest.mark.parametrize("way", ["auto", "distributed"])
def test_several_ranks_send_to_several_engines(launcher: Any, tmp_path: Path, way: str, nothing_left: Any) -> None:
    ended = launcher.run(tmp_path / "run", steps=STEPS, window=2, ranks=2, replicas=2, inference__transport=way)
    check(ended, {"auto": "memory"}.get(way, way))
    nothing_left(ended)


def test_an_engine_that_is_killed_half_way_is_served_from_the_disk_and_joins_again(
    launcher: Any, tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch, nothing_left: Any
) -> None:
    # Every life of the engine ends as it receives its second version.
    monkeypatch.setenv("HPCRL_FAILPOINT", "transport.receive@30=kill")
    ended = launcher.run(tmp_path / "run", steps=STEPS, inference__transport="distributed")
    assert ended.code == 0, ended.output
    assert ended.computed() == reference.computed()
    assert ended.published() == reference.published()
    ways = [record["way"] for record in ended.records("served")]
    assert "disk" in ways
    assert "distributed" in ways[ways.index("disk") :]
    assert ended.records("not_sent")
    nothing_left(ended)
