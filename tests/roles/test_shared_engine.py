"""An engine that takes turns with a trainer: real engine, real desk in memory, versions really published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.engines.client import EngineClient
from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.recipe import ColocationRing, FeedbackStream, Limits, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.roles.fence import VersionFence
from hpcrl.roles.generation import HttpGenerate
from hpcrl.roles.inference import Inference
from hpcrl.roles.prompting import Prompt
from hpcrl.roles.replicas import Engine
from hpcrl.roles.turns import Turns
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.tracking.journal import Journal, JournalReader

KEY = "secret"
COUNTS = {"trainer": 1, "inference": 1}


@dataclass(frozen=True, kw_only=True)
class Both(Role):
    """Announces on both feedback streams."""

    def announces(self) -> tuple[str, ...]:
        return (POLICY, SERVED)


class Bench:
    """A trainer that only publishes, and an engine behind the fence, on what they use in turn."""

    def __init__(self, path: Path, model: Path) -> None:
        self.attempt = RunDirectory.create(path / "run", name="t", recipe_json="{}").new_attempt()
        self.recipe = Recipe(
            name="t",
            groups={name: RoleGroup(role=Both()) for name in COUNTS},
            streams=(),
            feedback=(FeedbackStream(name=POLICY), FeedbackStream(name=SERVED)),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=4, window=2),
            rings=(ColocationRing(name="cores", members=("inference", "trainer"), fallback="inference"),),
            limits=Limits(wait_s=60, call_s=30),
        )
        hub = MemoryHub()
        self.trainer, self.inference = self.context(hub, "trainer"), self.context(hub, "inference")
        self.turns = Turns(self.trainer)
        self.tensors = load_file(model / "model.safetensors")
        specs = [TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.publisher = Publisher(self.attempt.run.weights, model, specs, attempt=1)
        settings = EngineSettings(model_path=model, threads=1, chunk_tokens=1)
        self.server = EmbeddedServer(settings, api_key=KEY)
        self.client = EngineClient(self.server.start(), key=KEY)
        self.node = NodeWeights(path / "node", self.attempt.run.weights, wait_s=30)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        wait_for(
            "the engine's first turn", lambda: any(r["name"] == "serve" for r in self.records("phase")) or None, seconds=60
        )

    def context(self, hub: MemoryHub, group: str) -> RoleContext:
        return RoleContext(
            recipe=self.recipe,
            identity=Identity(group, 0, 0, 1),
            attempt=self.attempt,
            queue=connect(hub, self.recipe, group=group, rank=0, processes=COUNTS),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", "t"),
            journal=Journal(self.attempt.journal / f"{group}.0.jsonl"),
            key=KEY,
            stop=StopFlag(),
        )

    def _follow(self) -> None:
        turns = Turns(self.inference)
        turns.take()
        try:
            VersionFence(self.inference, self.client, self.node, pause="in_place", turns=turns).follow()
        except (Stopped, RoleFailed) as error:
            self.error = error

    def publish(self, version: int) -> dict[str, Any]:
        """In a turn."""
        self.tensors["model.norm.weight"] += 0.25
        done = self.publisher.publish(version, self.tensors.items())
        said = {"version": version, "path": "", "hash": done.hash}
        self.trainer.queue.announce(POLICY, said)
        return said

    def memory(self) -> int:
        (state,) = self.client.ask("GET", "/server_info", None)["internal_states"]
        return sum(state["memory_bytes"].values())

    def wait_served(self, version: int) -> None:
        def poll() -> bool | None:
            assert self.error is None, self.error
            return {item.value["version"] for item in self.trainer.queue.newest(SERVED).values()} == {version} or None

        wait_for(f"version {version} to be served", poll, seconds=60)

    def records(self, kind: str) -> list[dict[str, Any]]:
        found = [record for _, record in JournalReader(self.attempt.journal).read() if record["kind"] == kind]
        return sorted(found, key=lambda record: record["t"])

    def close(self) -> None:
        self.inference.stop.set()
        self._thread.join(60)
        self.client.close()
        self.server.stop()
        for context in (self.trainer, self.inference):
            context.queue.close()
            context.journal.close()


@pytest.fixture
def bench(tmp_path: Path, tiny_model: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, tiny_model)) as made:
        yield made


def test_each_turn_of_the_trainer_has_the_memory_and_the_engine_comes_back_with_what_it_published(bench):
    for version in range(3):
        with bench.turns.turn(version) as turn:
            assert bench.memory() == 0
            turn.news = bench.publish(version)
        bench.wait_served(version)
        assert bench.client.model_info().weight_hash == turn.news["hash"]
        assert bench.memory() > 0
    served = bench.records("served")
    assert [record["version"] for record in served] == [0, 1, 2]
    assert {record["way"] for record in served} == {"disk"}
    back = [record for record in bench.records("handover") if record["giver"] == "trainer"]
    assert len(back) == 3
    assert all(record["load_s"] > 0 and record["resumed_bytes"] > 0 for record in back)
    there = [record for record in bench.records("handover") if record["giver"] == "inference"]
    assert all(record["freed_bytes"] == back[0]["resumed_bytes"] for record in there)


def test_a_turn_without_news_has_the_same_version_loaded_anew(bench):
    with bench.turns.turn() as turn:
        turn.news = bench.publish(0)
    bench.wait_served(0)
    before = bench.client.generate([[5, 9, 30]], Sampling(max_new_tokens=6, temperature=0.0), seconds=30)
    with bench.turns.turn():
        for parameter in bench.server.engine.model.module.parameters():
            assert parameter.numel() == 0
    wait_for("a second load", lambda: len(bench.records("served")) == 2 or None, seconds=30)
    again = bench.client.generate([[5, 9, 30]], Sampling(max_new_tokens=6, temperature=0.0), seconds=30)
    assert [c.tokens.tolist() for c in again[0]] == [c.tokens.tolist() for c in before[0]]
    assert bench.client.model_info().weight_hash == turn.news["hash"]


def test_a_turn_before_anything_was_published_leaves_the_engine_waiting_for_it(bench):
    with bench.turns.turn():
        pass
    wait_for("the engine to have let go", lambda: bench.records("let_go") or None, seconds=30)
    wait_for("the engine to have its memory", lambda: bench.memory() or None, seconds=30)
    assert bench.client.model_info().weight_hash is None
    said = bench.publish(0)
    bench.wait_served(0)
    assert bench.client.model_info().weight_hash == said["hash"]


def test_samples_that_a_turn_cuts_short_keep_their_tokens_and_go_on_with_the_new_weights(bench):
    with bench.turns.turn() as turn:
        turn.news = bench.publish(0)
    bench.wait_served(0)
    engine, prompt = Engine("inference.0", bench.client.url, 0), Prompt(0, {}, np.array([5, 9, 30, 41], np.int32))
    answers: list[Any] = []
    with HttpGenerate(bench.trainer, Sampling(max_new_tokens=120, temperature=1.0)) as generate:
        asking = threading.Thread(target=lambda: answers.extend(generate(engine, [prompt], StopFlag())))
        asking.start()
        for version in (1, 2):
            wait_for("a cache", lambda: bench.client.loads().token_usage or None, seconds=30)
            with bench.turns.turn() as turn:
                turn.news = bench.publish(version)
            bench.wait_served(version)
        asking.join(60)
    (samples,) = answers
    assert len(samples) == 4
    assert {sample.finish for sample in samples} <= {"length", "stop"}
    assert any(sorted(set(sample.versions.tolist())) == [0, 1, 2] for sample in samples), "nothing was made twice"
    for sample in samples:
        assert len(sample.ids) == len(sample.logprobs) == len(sample.versions)
        assert (np.diff(sample.versions) >= 0).all()


def test_an_engine_that_cannot_let_go_ends_the_role_with_its_words(bench):
    with bench.turns.turn() as turn:
        turn.news = bench.publish(0)
    bench.wait_served(0)
    bench.client.release = lambda: bench.client.ask("POST", "/release_memory_occupation", {"tags": ["all"]})
    seat = bench.trainer.queue.seat("cores")
    seat.ask()
    bench._thread.join(60)
    assert isinstance(bench.error, RoleFailed)
    assert "inference.0 on " in str(bench.error)
    assert "did not let go of its memory" in str(bench.error)
    assert "tags must be of weights, kv_cache" in str(bench.error)
    assert "inference.0.log" in str(bench.error)
    assert not seat.wait(0).settled


def test_what_cannot_work_in_a_ring_is_said_before_the_start(tiny_model):
    base = Recipe(
        name="t",
        groups={},
        streams=(),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
        rings=(ColocationRing(name="gpus", members=("inference", "trainer"), fallback="inference"),),
    )

    def problems(role: Inference, gpus: int = 0) -> list[str]:
        groups = {"inference": RoleGroup(role=role, resources=Resources(gpus=gpus)), "trainer": RoleGroup(role=Both())}
        return role._ring_problems(replace(base, groups=groups))

    assert problems(Inference(model=str(tiny_model), transport="memory")) == []
    (problem,) = problems(Inference(model=str(tiny_model), transport="distributed"))
    assert "inference has no memory while trainer sends it weights by distributed" in problem
    (problem,) = problems(Inference(model=str(tiny_model), sglang=Sglang()))
    assert "inference must let go of its memory, which SGLang can on GPUs only" in problem
    assert len(problems(Inference(model=str(tiny_model), sglang=Sglang()), gpus=1)) == 1
    assert problems(Inference(model=str(tiny_model), sglang=Sglang(memory_saver=True)), gpus=1) == []
