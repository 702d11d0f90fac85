from __future__ import annotations

import json
import threading
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from hpcrl.data.pool import GradingPool
from hpcrl.data.rewards import Outcome
from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import EndOfStream
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.recipe import Limits, Reads, Recipe, Role, RoleGroup, Schedule, Writes
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.reward import Reward
from hpcrl.roles.samples import CREATED_NAMES, SAMPLES, samples_stream
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.tracking.journal import Journal, JournalReader

PER_PROMPT = 2
REWARD = """
import os, time
def reward(response, item):
    if response == "hang": time.sleep(600)
    if response == "die": os._exit(9)
    if response == "raise": raise LookupError(f"nothing about {item['answer']}")
    return float(response == item["answer"])
"""


@dataclass(frozen=True, kw_only=True)
class Source(Role):
    """Creates rows."""

    def writes(self):
        return (Writes(stream=SAMPLES, columns=CREATED_NAMES, creates=True),)


@dataclass(frozen=True, kw_only=True)
class Sink(Role):
    """Reads graded rows."""

    def reads(self):
        return (Reads(stream=SAMPLES, columns=("prompt_number", "response", "reward", "outcome"), final=True),)


class Bench:
    """A reward role between a source and a sink of the test's own."""

    def __init__(self, tmp_path, role, prompts_per_step=2):
        self.role, self.hub = role, MemoryHub()
        self.recipe = Recipe(
            name="t",
            groups={"source": RoleGroup(role=Source()), "reward": RoleGroup(role=role), "sink": RoleGroup(role=Sink())},
            streams=(samples_stream(samples_per_prompt=PER_PROMPT),),
            schedule=Schedule(steps=4, prompts_per_step=prompts_per_step, samples_per_prompt=PER_PROMPT),
            limits=Limits(wait_s=30),
        )
        run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
        self.attempt = run.new_attempt()
        self.source, self.sink = self._plane("source"), self._plane("sink")
        self.stop = StopFlag()
        self.context = RoleContext(
            recipe=self.recipe,
            identity=Identity("reward", 0, 0, 1),
            attempt=self.attempt,
            queue=self._plane("reward"),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", run.run_id),
            journal=Journal(self.attempt.journal / "reward.0.jsonl"),
            key="",
            stop=self.stop,
        )

    def _plane(self, group):
        return connect(self.hub, self.recipe, group=group, rank=0, processes={"source": 1, "reward": 1, "sink": 1})

    def put(self, prompt, step, *responses, answer="7"):
        rows = len(responses)
        empty = [np.empty(0, np.int32)] * rows
        self.source.put(
            SAMPLES,
            {
                "prompt_number": np.full(rows, prompt),
                "sample_index": np.arange(rows, dtype=np.int32),
                "step": np.full(rows, step, np.int32),
                "prompt_ids": empty,
                "response_ids": empty,
                "rollout_logprobs": [np.empty(0, np.float32)] * rows,
                "versions": empty,
                "response": list(responses),
                "item": [json.dumps({"question": "3 + 4", "answer": answer, "metadata": {}, "source": "x:1"})] * rows,
                "finish": ["stop"] * rows,
            },
        )

    def graded(self):
        rows = {}
        while True:
            try:
                batch = self.sink.read(SAMPLES, ("prompt_number", "response", "reward", "outcome"), max_rows=64, wait_s=5)
            except EndOfStream:
                return rows
            assert batch is not None
            for prompt, response, reward, outcome in zip(*batch.columns.values(), strict=True):
                rows.setdefault(int(prompt), []).append((response, float(reward), Outcome(int(outcome))))

    def journal(self, kind):
        return [record for _, record in JournalReader(self.attempt.journal).read() if record["kind"] == kind]


@pytest.fixture
def function(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REWARD)
    return f"{path}:reward"


def workers():
    # They are children of the fork server, which stays until this process ends.
    found = [worker for child in psutil.Process().children() for worker in child.children()]
    return {worker for worker in found if worker.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(autouse=True)
def no_worker_is_left():
    before = workers()
    yield
    assert workers() <= before


@pytest.mark.slow
def test_every_sample_is_graded_and_outcomes_are_counted_apart(tmp_path, function):
    bench = Bench(tmp_path, Reward(function=function, sample_s=0.5, workers=2))
    bench.put(0, 0, "7", "8")
    bench.put(1, 0, "hang", "7")
    bench.put(2, 1, "die", "7")
    bench.put(3, 1, "raise", "7")
    bench.source.close_stream(SAMPLES)
    bench.role.run(bench.context)
    assert bench.graded() == {
        0: [("7", 1.0, Outcome.RIGHT), ("8", 0.0, Outcome.WRONG)],
        1: [("hang", 0.0, Outcome.TIMEOUT), ("7", 1.0, Outcome.RIGHT)],
        2: [("die", 0.0, Outcome.EXCEPTION), ("7", 1.0, Outcome.RIGHT)],
        3: [("raise", 0.0, Outcome.EXCEPTION), ("7", 1.0, Outcome.RIGHT)],
    }
    outcomes = bench.journal("outcomes")
    counted = {name: sum(record.get(name, 0) for record in outcomes) for name in ("right", "wrong", "timeout", "exception")}
    assert counted == {"right": 4, "wrong": 1, "timeout": 1, "exception": 2}
    assert {record["step"] for record in outcomes} == {1, 2}


@pytest.mark.slow
def test_blocks_are_graded_while_the_stream_is_open(tmp_path, function):
    bench = Bench(tmp_path, Reward(function=function))

    def until_stopped() -> None:
        with pytest.raises(Stopped):
            bench.role.run(bench.context)

    thread = threading.Thread(target=until_stopped)
    thread.start()
    try:
        for prompt in range(3):
            bench.put(prompt, 0, "7", "8")
            batch = bench.sink.read(SAMPLES, ("prompt_number", "outcome"), max_rows=64, wait_s=20)
            assert batch is not None
            assert list(batch.columns["prompt_number"]) == [prompt, prompt]
    finally:
        bench.stop.set()
        thread.join(20)
    assert not thread.is_alive()


@pytest.mark.slow
def test_grades_that_come_with_the_stop_are_dropped(tmp_path, function, monkeypatch):
    """A scheduler signals every process of a job at once, so workers may have been ended with the role."""
    bench = Bench(tmp_path, Reward(function=function))
    bench.put(0, 0, "7")
    collect = GradingPool.collect

    def collect_and_stop(pool, future):
        bench.stop.set()
        return collect(pool, future)

    monkeypatch.setattr(GradingPool, "collect", collect_and_stop)
    bench.source.close_stream(SAMPLES)
    with pytest.raises(Stopped):
        bench.role.run(bench.context)
    assert bench.sink.read(SAMPLES, ("prompt_number", "outcome"), max_rows=64, wait_s=0.2) is None
    assert bench.journal("outcomes") == []


@pytest.mark.slow
def test_a_step_without_a_single_grade_ends_the_role_with_an_example(tmp_path, function):
    bench = Bench(tmp_path, Reward(function=function, sample_s=0.3))
    bench.put(0, 0, "7", "raise")
    bench.put(1, 0, "raise", "raise")
    bench.put(2, 1, "raise", "hang", answer="41")
    bench.put(3, 1, "raise", "die", answer="41")
    bench.source.close_stream(SAMPLES)
    with pytest.raises(RoleFailed) as caught:
        bench.role.run(bench.context)
    said = str(caught.value)
    assert "step 2" in said
    assert '"question": "3 + 4"' in said
    assert "response: 'raise'" in said
    assert "LookupError: nothing about" in said


def test_checks(tmp_path):
    recipe = Bench(tmp_path, Reward(function="hpcrl.data.graders:exact_number")).recipe
    assert Reward(function="hpcrl.data.graders:exact_number").check(recipe) == []
    (tmp_path / "bad.py").write_text("import no_such_module_x\n")
    problems = Reward(function=f"{tmp_path / 'bad.py'}:f", sample_s=0).check(recipe)
    assert "sample_s 0" in problems[0]
    assert "bad.py" in problems[1]
    assert "No module named 'no_such_module_x'" in problems[1]
