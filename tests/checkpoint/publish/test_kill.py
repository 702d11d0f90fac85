"""SIGKILL at every named place of publishing and of bringing: what comes next works, and the weights are the right ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.versions import read_version, versions
from hpcrl.run.failpoints import NAMES, VARIABLE

pytestmark = pytest.mark.slow

# With how often the place is reached before: at a patch, and of some places at a base too.
PUBLISHING = [(name, 3) for name in NAMES if name.startswith("publish.")] + [("publish.written", 1), ("publish.done", 1)]
BRINGING = [(name, 2) for name in NAMES if name.startswith("node.")] + [("node.base", 1), ("node.checked", 1)]
STEPS = 5
# Publishes versions, base_every 3, keeping one; or brings each of them.
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from conftest import Policy
from pathlib import Path
what, folder, model = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
policy = Policy(model)
if what == "publish":
    publisher = policy.publisher(folder / "weights", base_every=3)
    for version in range(int(sys.argv[5])):
        done = publisher.publish(version, policy.step().items())
        print(done.version, done.hash, flush=True)
        publisher.retain(keep_last=2)
else:
    from hpcrl.checkpoint.publish.node import NodeWeights
    from hpcrl.checkpoint.publish.versions import read_version, versions
    node = NodeWeights(folder / "node", folder / "weights", wait_s=30)
    for version in versions(folder / "weights"):
        with node.bring(version, read_version(folder / "weights", version).hash):
            print(version, flush=True)
"""


def run(what: str, folder: Path, model: Path, point: str = "", *arguments: object) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", PROGRAM, here, what, str(folder), str(model), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, VARIABLE: point}, capture_output=True, text=True, timeout=120)


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
def test_publishing_goes_on_after_a_kill(tmp_path, tiny_model, policy, point, nth, damage):
    killed = run("publish", tmp_path, tiny_model, f"{point}@{nth}", STEPS)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    said = dict(line.split() for line in killed.stdout.splitlines())
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
def test_bringing_goes_on_after_a_kill(tmp_path, tiny_model, policy, point, nth, damage):
    publisher = policy.publisher(tmp_path / "weights")
    hashes = {version: publisher.publish(version, policy.step().items()).hash for version in range(3)}
    killed = run("bring", tmp_path, tiny_model, f"{point}@{nth}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check(tmp_path, hashes, damage)
    assert json.loads((tmp_path / "node" / "model" / "version.json").read_text())["hash"] == hashes[2]
