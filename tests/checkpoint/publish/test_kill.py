"""SIGKILL at every named place of publishing and of bringing: what comes next works, and the weights are the right ones."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.versions import read_version, versions
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.failpoints import NAMES, arm
from hpcrl.run.stop import wait_for

pytestmark = pytest.mark.slow

# With how often the place is reached before: at a patch, and of some places at a base too.
PUBLISHING = [(name, 3) for name in NAMES if name.startswith("publish.")] + [("publish.written", 1), ("publish.done", 1)]
BRINGING = [(name, 2) for name in NAMES if name.startswith("node.")] + [("node.base", 1), ("node.checked", 1)]
STEPS = 5


def publish(policy: Any, folder: Path) -> Iterator[str]:
    """Versions, every third of them a base, keeping two."""
    publisher = policy.publisher(folder / "weights", base_every=3)
    for version in range(STEPS):
        done = publisher.publish(version, policy.step().items())
        yield f"{done.version} {done.hash}"
        publisher.retain(keep_last=2)


def bring(policy: Any, folder: Path) -> Iterator[str]:
    """Each version to a node."""
    node = NodeWeights(folder / "node", folder / "weights", wait_s=30)
    for version in versions(folder / "weights"):
        with node.bring(version, read_version(folder / "weights", version).hash):
            yield str(version)


def kill(work: Callable[[Any, Path], Iterator[str]], policy: Any, folder: Path, point: str) -> list[str]:
    """What is said by a fork of this process that works until it is killed; it need not import anything."""
    said = folder / "said"
    said.touch()
    pid = os.fork()
    if pid == 0:
        try:
            # Those of this process are not in a fork.
            torch.set_num_threads(1)
            arm(point)
            for word in work(policy, folder):
                with open(said, "a") as file:
                    file.write(f"{word}\n")
        except Exception:  # noqa: BLE001 - nothing may go back to the test below
            traceback.print_exc()
        finally:
            os._exit(1)

    def ended() -> int | None:
        done, status = os.waitpid(pid, os.WNOHANG)
        return status if done else None

    try:
        status = wait_for(f"{point} to be reached", ended, seconds=120)
    except DeadlineExceeded:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{point} was not reached"
    return said.read_text().splitlines()


def check(folder: Path, hashes: dict[int, str], damage: Callable[[Path], list[str]]) -> None:
    """Every version that is there is whole, has the hash that the trainer gave it, and reaches a node."""
    weights = folder / "weights"
    assert damage(weights) == []
    node = NodeWeights(folder / "node", weights, wait_s=30)
    for version in versions(weights):
        done = read_version(weights, version)
        assert done.hash == hashes.get(version, done.hash)
        with node.bring(version, done.hash) as loaded:
            assert hash_tensors(load_file(loaded.path / "model.safetensors")) == loaded.hash
            assert loaded.version >= version


@pytest.mark.parametrize(("point", "nth"), PUBLISHING)
def test_publishing_goes_on_after_a_kill(tmp_path, policy, point, nth, damage):
    said = dict(line.split() for line in kill(publish, policy, tmp_path, f"{point}@{nth}"))
    check(tmp_path, {int(version): digest for version, digest in said.items()}, damage)
    # The next attempt: from the last version that was announced, which is published again as a base.
    start = max(map(int, said), default=0)
    publisher = policy.publisher(tmp_path / "weights", attempt=2, base_every=3)
    hashes = {}
    for version in range(start, start + 3):
        done = publisher.publish(version, policy.step().items())
        hashes[version] = hash_tensors(policy.tensors)
        assert done.hash == hashes[version]
        assert done.kind == ("base" if version == start else "patch")
        publisher.retain(keep_last=2)
    check(tmp_path, hashes, damage)
    left = {path.name for path in (tmp_path / "weights").iterdir()}
    assert left == {f"v{version:06d}" for version in versions(tmp_path / "weights")}


@pytest.mark.parametrize(("point", "nth"), BRINGING)
def test_bringing_goes_on_after_a_kill(tmp_path, policy, point, nth, damage):
    publisher = policy.publisher(tmp_path / "weights")
    hashes = {version: publisher.publish(version, policy.step().items()).hash for version in range(3)}
    kill(bring, policy, tmp_path, f"{point}@{nth}")
    check(tmp_path, hashes, damage)
    assert json.loads((tmp_path / "node" / "model" / "version.json").read_text())["hash"] == hashes[2]
