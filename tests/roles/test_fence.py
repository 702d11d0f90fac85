"""The version fence with a real engine: what it announces, and what it does when an update fails."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from safetensors.torch import load_file

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.engines.client import EngineClient
from hpcrl.recipe import FeedbackStream, Limits, Recipe, Role, RoleGroup, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import NOT_SERVING, POLICY, SERVED
from hpcrl.roles.fence import VersionFence
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.tracking.journal import Journal, JournalReader

KEY = "secret"


@dataclass(frozen=True, kw_only=True)
class Both(Role):
    """Announces on both feedback streams."""

    def listens(self):
        return (POLICY, SERVED)

    def announces(self):
        return (POLICY, SERVED)


class SpoiltOnce(NodeWeights):
    """Changes a bit of what it brings, so many times."""

    times = 0

    @contextmanager
    def bring(self, version, expect_hash):
        with super().bring(version, expect_hash) as loaded:
            if self.times:
                self.times -= 1
                file = loaded.path / "model.safetensors"
                data = bytearray(file.read_bytes())
                data[-1] ^= 1
                file.write_bytes(data)
            yield loaded


class Bench:
    """A trainer's announcements on one side, an engine behind the fence on the other."""

    def __init__(self, tmp_path, model, url):
        self.run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
        self.attempt = self.run.new_attempt()
        recipe = Recipe(
            name="t",
            groups={"trainer": RoleGroup(role=Both()), "inference": RoleGroup(role=Both())},
            streams=(),
            feedback=(FeedbackStream(name=POLICY), FeedbackStream(name=SERVED)),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            limits=Limits(wait_s=60, call_s=30),
        )
        hub, counts = MemoryHub(), {"trainer": 1, "inference": 1}
        self.queue = connect(hub, recipe, group="trainer", rank=0, processes=counts)
        self.context = RoleContext(
            recipe=recipe,
            identity=Identity("inference", 0, 0, 1),
            attempt=self.attempt,
            queue=connect(hub, recipe, group="inference", rank=0, processes=counts),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", self.run.run_id),
            journal=Journal(self.attempt.journal / "inference.0.jsonl"),
            key=KEY,
            stop=StopFlag(),
        )
        self.tensors = load_file(model / "model.safetensors")
        specs = [TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.publisher = Publisher(self.run.weights, model, specs, attempt=1)
        self.client = EngineClient(url, key=KEY)
        self.node = SpoiltOnce(tmp_path / "node", self.run.weights, wait_s=30)
        self.error = None
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        try:
            VersionFence(self.context, self.client, self.node, pause="in_place").follow()
        except (Stopped, RoleFailed) as error:
            self.error = error

    def announce(self, version):
        self.tensors["model.norm.weight"] += 1
        done = self.publisher.publish(version, self.tensors.items())
        self.queue.announce(POLICY, {"version": version, "path": "", "hash": done.hash})
        return done.hash

    def served(self):
        return {item.value["version"] for item in self.queue.newest(SERVED).values()}

    def wait_served(self, version):
        wait_for(f"version {version}", lambda: self.served() == {version} or None, seconds=30)

    def records(self, kind):
        return [record for _, record in JournalReader(self.attempt.journal).read() if record["kind"] == kind]

    def wait_end(self):
        self._thread.join(60)
        assert not self._thread.is_alive()

    def close(self):
        self.context.stop.set()
        self.wait_end()
        self.client.close()


@pytest.fixture
def bench(tmp_path, tiny_model):
    from hpcrl.engines.embedded.server import EmbeddedServer
    from hpcrl.engines.embedded.settings import EngineSettings

    server = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1, max_context=64), api_key=KEY)
    made = Bench(tmp_path, tiny_model, server.start())
    yield made
    made.close()
    server.stop()


def test_each_version_is_served_with_the_trainers_hash(bench):
    for version in range(3):
        digest = bench.announce(version)
        bench.wait_served(version)
        assert bench.client.model_info().weight_hash == digest
    assert [record["hash"] for record in bench.records("served")][-1] == digest
    reads = [record["read_bytes"] for record in bench.records("served")]
    assert all(read < reads[0] / 10 for read in reads[1:])
    bench.close()
    assert isinstance(bench.error, Stopped)


def test_a_failed_update_takes_the_engine_out_of_routing_until_a_whole_version_is_loaded(bench):
    bench.announce(0)
    bench.wait_served(0)
    seen = []
    announce = bench.context.queue.announce
    bench.context.queue.announce = lambda stream, value: (seen.append(value["version"]), announce(stream, value))
    bench.node.times = 1
    digest = bench.announce(1)
    bench.wait_served(1)
    assert seen == [NOT_SERVING, 1]
    assert bench.client.model_info().weight_hash == digest
    assert bench.client.health()
    (failed,) = bench.records("unserved")
    assert failed["version"] == 1
    assert "hash to" in failed["error"]
    assert bench.records("served")[-1]["read_bytes"] > bench.publisher._owned.bits["model.embed_tokens.weight"].nbytes


def test_a_second_failure_is_the_roles_own_and_nothing_was_announced(bench):
    bench.announce(0)
    bench.wait_served(0)
    bench.node.times = 2
    bench.announce(1)
    bench.wait_end()
    assert isinstance(bench.error, RoleFailed)
    assert "inference.0: version 1 could not be loaded even from a fresh base" in str(bench.error)
    assert "inference.0.log" in str(bench.error)
    assert bench.served() == {NOT_SERVING}
    assert not bench.client.health()


def test_a_damaged_patch_is_passed_over_if_a_newer_base_is_there(bench, tmp_path):
    bench.announce(0)
    bench.wait_served(0)
    with bench.node.bring(0, bench.client.model_info().weight_hash):
        # The engine cannot be switched meanwhile.
        bench.announce(1)
        file = bench.run.weights / "v000001" / "patch.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        bench.publisher._last = None
        bench.announce(2)
    bench.wait_served(2)
    assert bench.error is None
