from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from hpcrl.data.cursor import PromptOrder
from hpcrl.data.dataset import Item
from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import EndOfStream
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.recipe import FeedbackStream, Limits, Reads, Recipe, Role, RoleGroup, Schedule, Writes
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import SERVED
from hpcrl.roles.producer import EngineFailed, Producer
from hpcrl.roles.prompting import Answer, PromptSource
from hpcrl.roles.samples import CREATED_NAMES, SAMPLES, samples_stream
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.tracking.journal import Journal, JournalReader

SAMPLES_PER_PROMPT = 2


@dataclass(frozen=True, kw_only=True)
class Creator(Role):
    """Stands for the rollout."""

    def writes(self):
        return (Writes(stream=SAMPLES, columns=CREATED_NAMES, creates=True),)


@dataclass(frozen=True, kw_only=True)
class Sink(Role):
    """Reads what was created."""

    def reads(self):
        return (Reads(stream=SAMPLES, columns=CREATED_NAMES, final=True),)


@dataclass(frozen=True, kw_only=True)
class Service(Role):
    """Announces engines."""

    def announces(self):
        return (SERVED,)


class FakeEncoder:
    """One token a prompt."""

    def encode(self, item):
        return np.array([int(item.prompt)], np.int32)

    def decode(self, ids):
        return " ".join(map(str, ids))


class FakeEngines:
    """Answers with the prompt's number and the version that the engine announced; fails when told to."""

    def __init__(self):
        self.requests = []
        self.dead = set()
        self.stale = set()
        self.broken = None
        self.block = threading.Event()
        self.block.set()
        self.lock = threading.Lock()

    def __call__(self, engine, prompts, stop):
        with self.lock:
            self.requests.append((engine.name, engine.version, tuple(p.number for p in prompts)))
        if self.broken in [p.number for p in prompts]:
            raise RoleFailed("refused")
        while not self.block.wait(0.02):
            if stop.is_set():
                raise Stopped("fake engine dropped the request")
        if engine.name in self.dead:
            raise EngineFailed(f"{engine.name} is dead")
        version = engine.version - (engine.name in self.stale)
        return [
            [
                Answer(np.array([p.number, i], np.int32), np.zeros(2, np.float32), np.full(2, version, np.int32), "stop")
                for i in range(SAMPLES_PER_PROMPT)
            ]
            for p in prompts
        ]


class Bench:
    """A producer between engines and a sink of the test's own."""

    def __init__(self, tmp_path, *, window=1, steps=3, engines=1, replicas=1, lag=4, wait_s=20.0, settle_s=20.0, concurrency=8):
        self.fake, self.hub, self.engines, self.replicas = FakeEngines(), MemoryHub(), engines, replicas
        self.settle_s, self.concurrency = settle_s, concurrency
        self.recipe = Recipe(
            name="t",
            groups={
                "rollout": RoleGroup(role=Creator(), replicas=replicas),
                "inference": RoleGroup(role=Service(), replicas=engines),
                "sink": RoleGroup(role=Sink()),
            },
            streams=(samples_stream(samples_per_prompt=SAMPLES_PER_PROMPT),),
            feedback=(FeedbackStream(name=SERVED),),
            schedule=Schedule(steps=steps, prompts_per_step=4, samples_per_prompt=SAMPLES_PER_PROMPT, window=window),
            limits=Limits(wait_s=wait_s, version_lag=lag),
        )
        run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
        self.attempt = run.new_attempt()
        self.sink = self._plane("sink", 0)
        self.services = [self._plane("inference", i) for i in range(engines)]
        self.contexts = [self._context(i) for i in range(replicas)]

    def _plane(self, group, rank):
        counts = {"rollout": self.replicas, "inference": self.engines, "sink": 1}
        return connect(self.hub, self.recipe, group=group, rank=rank, processes=counts)

    def _context(self, rank):
        return RoleContext(
            recipe=self.recipe,
            identity=Identity("rollout", rank, rank, self.replicas),
            attempt=self.attempt,
            queue=self._plane("rollout", rank),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", "r"),
            journal=Journal(self.attempt.journal / f"rollout.{rank}.jsonl"),
            key="",
        )

    def serve(self, version, *ranks):
        for rank in ranks or range(self.engines):
            self.services[rank].announce(SERVED, {"version": version, "url": f"http://{rank}"})

    def run(self, first=0, total=None, rank=0):
        items = [Item(prompt=str(i), answer=str(i)) for i in range(100)]
        context = self.contexts[rank]
        producer = Producer(
            context,
            PromptSource(items, PromptOrder(100, shuffle=False), FakeEncoder()),
            self.fake,
            stream=SAMPLES,
            engines=self.engines,
            concurrency=self.concurrency,
            settle_s=self.settle_s,
        )
        producer.run(first, total if total is not None else self.recipe.schedule.steps * 4)
        context.queue.close_stream(SAMPLES)

    def start(self, **arguments):
        self.error = None

        def target():
            try:
                self.run(**arguments)
            except (RoleFailed, Stopped) as error:
                self.error = error

        thread = threading.Thread(target=target)
        thread.start()
        return thread

    def read(self, prompts):
        """The next rows, as (prompt number, step) of each prompt."""
        found = []
        while len(found) < prompts:
            batch = self.sink.read(SAMPLES, CREATED_NAMES, max_rows=SAMPLES_PER_PROMPT * (prompts - len(found)), wait_s=10)
            assert batch is not None, f"only {found}"
            for block in batch.split():
                assert list(block.columns["sample_index"]) == [0, 1]
                assert block.columns["response_ids"][1].tolist() == [block.columns["prompt_number"][0], 1]
                found.append((int(block.columns["prompt_number"][0]), int(block.columns["step"][0])))
        return found

    def nothing_more(self):
        return self.sink.read(SAMPLES, CREATED_NAMES, max_rows=64, wait_s=0.3) is None

    def ended(self):
        with pytest.raises(EndOfStream):
            self.sink.read(SAMPLES, CREATED_NAMES, max_rows=64, wait_s=10)
        return True


def test_lock_step_sends_each_batch_as_one_request_and_waits_for_its_version(tmp_path):
    bench = Bench(tmp_path)
    thread = bench.start()
    assert bench.nothing_more()
    for step in range(3):
        bench.serve(step)
        assert bench.read(4) == [(4 * step + i, step) for i in range(4)]
        if step < 2:
            assert bench.nothing_more()
    thread.join(10)
    assert bench.error is None
    assert bench.fake.requests == [("inference.0", s, tuple(range(4 * s, 4 * s + 4))) for s in range(3)]
    assert bench.ended()


def test_lock_step_deals_a_batch_over_the_engines_once_all_serve_it(tmp_path):
    bench = Bench(tmp_path, engines=2, steps=1)
    thread = bench.start()
    bench.serve(0, 1)
    assert bench.nothing_more()
    bench.serve(0, 0)
    thread.join(10)
    assert sorted(bench.fake.requests) == [("inference.0", 0, (0, 1)), ("inference.1", 0, (2, 3))]


def test_lock_step_goes_on_without_an_engine_that_does_not_come(tmp_path):
    bench = Bench(tmp_path, engines=2, steps=1, settle_s=0.2)
    bench.serve(0, 0)
    bench.run()
    assert bench.fake.requests == [("inference.0", 0, (0, 1, 2, 3))]


def test_the_last_batch_holds_what_is_left_and_a_resumed_run_starts_in_the_middle(tmp_path):
    bench = Bench(tmp_path)
    bench.serve(9)
    bench.run(first=6, total=10)
    assert sorted(bench.read(4)) == [(6, 1), (7, 1), (8, 2), (9, 2)]
    assert bench.ended()
    assert [numbers for _, _, numbers in bench.fake.requests] == [(6, 7), (8, 9)]


@pytest.mark.parametrize(
    ("window", "lag", "ahead"), [(2, 4, 1), (3, 4, 2), (3, 1, 1), (None, 4, 2), (None, 2, 1), (None, 0, 0)]
)
def test_generation_runs_ahead_as_far_as_window_and_lag_let_it(tmp_path, window, lag, ahead):
    bench = Bench(tmp_path, window=window, lag=lag, steps=5)
    thread = bench.start()
    bench.serve(0)
    due = 4 * (1 + ahead)
    assert sorted(k for k, _ in bench.read(due)) == list(range(due))
    assert bench.nothing_more()
    bench.serve(1)
    assert sorted(k for k, _ in bench.read(4)) == list(range(due, due + 4))
    assert bench.nothing_more()
    bench.serve(9)
    thread.join(10)
    assert bench.error is None
    assert all(len(numbers) == 1 for _, _, numbers in bench.fake.requests)


def test_no_more_requests_than_allowed_are_under_way(tmp_path):
    bench = Bench(tmp_path, window=None, concurrency=3, steps=2)
    bench.serve(9)
    bench.fake.block.clear()
    thread = bench.start()
    assert bench.nothing_more()
    assert len(bench.fake.requests) == 3
    bench.fake.block.set()
    thread.join(10)
    assert len(bench.read(8)) == 8


def test_replicas_share_the_prompts_and_each_is_answered_once(tmp_path):
    bench = Bench(tmp_path, replicas=3, steps=2)
    bench.serve(9)
    for rank in range(3):
        bench.run(rank=rank)
    assert sorted(bench.read(8)) == [(k, k // 4) for k in range(8)]
    assert bench.ended()


@pytest.mark.parametrize("window", [1, None])
@pytest.mark.parametrize("trouble", ["dead", "stale"])
def test_a_request_that_fails_goes_to_another_engine(tmp_path, window, trouble):
    bench = Bench(tmp_path, window=window, engines=2, steps=1, lag=0)
    getattr(bench.fake, trouble).add("inference.0")
    bench.serve(0)
    bench.run()
    assert sorted(bench.read(4)) == [(k, 0) for k in range(4)]
    tried = Counter(name for name, _, _ in bench.fake.requests)
    assert tried["inference.0"] >= 1


def test_the_same_engine_is_asked_again_when_it_comes_back(tmp_path):
    bench = Bench(tmp_path, steps=1)
    bench.fake.dead.add("inference.0")
    bench.serve(0)
    thread = bench.start()
    assert bench.nothing_more()
    bench.fake.dead.clear()
    assert len(bench.read(4)) == 4
    thread.join(10)
    assert bench.error is None


def test_no_answer_within_the_limit_ends_the_role_and_says_why(tmp_path):
    bench = Bench(tmp_path, steps=1, wait_s=0.5)
    bench.fake.dead.add("inference.0")
    bench.serve(0)
    with pytest.raises(RoleFailed, match=r"prompts 0 to 3 of batch 0 after \d+ failed requests, the last: inference.0 is dead"):
        bench.run()


def test_stop_ends_the_wait_for_the_gate(tmp_path):
    bench = Bench(tmp_path)
    bench.serve(0)
    thread = bench.start()
    assert len(bench.read(4)) == 4
    bench.contexts[0].stop.set()
    thread.join(10)
    assert isinstance(bench.error, Stopped)


@pytest.mark.parametrize("window", [1, None])
def test_stop_drops_the_requests_under_way(tmp_path, window):
    bench = Bench(tmp_path, window=window)
    bench.serve(0)
    bench.fake.block.clear()
    thread = bench.start()
    assert bench.nothing_more()
    bench.contexts[0].stop.set()
    thread.join(10)
    assert isinstance(bench.error, Stopped)


def test_a_failure_drops_the_other_requests(tmp_path):
    bench = Bench(tmp_path, window=None)
    bench.serve(9)
    bench.fake.block.clear()
    bench.fake.broken = 2
    thread = bench.start()
    thread.join(10)
    assert isinstance(bench.error, RoleFailed)
    assert not thread.is_alive()


def test_sampled_figures_are_journalled(tmp_path):
    bench = Bench(tmp_path, steps=1)
    bench.serve(0)
    bench.run()
    (record,) = [r for _, r in JournalReader(bench.attempt.journal).read() if r["kind"] == "sampled"]
    assert (record["prompts"], record["samples"], record["tokens"], record["truncated"]) == (4, 8, 16, 0)
    assert record["seconds"] >= 0
