from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.state.manifest import Manifest, write_manifest
from hpcrl.data.procedural import ReasoningGym
from hpcrl.data.records import Records
from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import EndOfStream
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import FeedbackStream, Limits, Reads, Recipe, Role, RoleGroup, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import SERVED
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import CREATED_NAMES, SAMPLES, samples_stream
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.tracking.journal import Journal

KEY = "secret"


@dataclass(frozen=True, kw_only=True)
class Sink(Role):
    """Reads what was created."""

    def reads(self):
        return (Reads(stream=SAMPLES, columns=CREATED_NAMES, final=True),)


@dataclass(frozen=True, kw_only=True)
class Service(Role):
    """Announces engines."""

    max_context: int = 128

    def announces(self):
        return (SERVED,)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i} + {i} =", "answer": 2 * i}) + "\n" for i in range(7)))
    return Records(paths=(str(path),))


@pytest.fixture
def role(tiny_model, data):
    return Rollout(model=str(tiny_model), dataset=data, sampling=Sampling(max_new_tokens=6))


def make_recipe(role, *, window=1, steps=2, seed=0, wait_s=60.0, engines=1):
    return Recipe(
        name="t",
        groups={
            "rollout": RoleGroup(role=role),
            "inference": RoleGroup(role=Service(), replicas=engines),
            "sink": RoleGroup(role=Sink()),
        },
        streams=(samples_stream(samples_per_prompt=2),),
        feedback=(FeedbackStream(name=SERVED),),
        schedule=Schedule(steps=steps, prompts_per_step=4, samples_per_prompt=2, window=window),
        limits=Limits(wait_s=wait_s),
        seed=seed,
    )


@pytest.fixture(scope="module")
def engine(tiny_model):
    from hpcrl.engines.embedded.server import EmbeddedServer
    from hpcrl.engines.embedded.settings import EngineSettings

    server = EmbeddedServer(EngineSettings(model_path=tiny_model, threads=1, max_context=128), api_key=KEY)
    yield server.start()
    server.stop()


class Bench:
    """A rollout between announced engines and a sink of the test's own."""

    def __init__(self, tmp_path, recipe, urls):
        self.recipe, hub = recipe, MemoryHub()
        counts = {name: group.replicas for name, group in recipe.groups.items()}
        run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
        self.attempt = run.new_attempt()
        self.sink = connect(hub, recipe, group="sink", rank=0, processes=counts)
        for rank, url in enumerate(urls):
            service = connect(hub, recipe, group="inference", rank=rank, processes=counts)
            service.announce(SERVED, {"version": 0, "url": url})
        self.context = RoleContext(
            recipe=recipe,
            identity=Identity("rollout", 0, 0, 1),
            attempt=self.attempt,
            queue=connect(hub, recipe, group="rollout", rank=0, processes=counts),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", run.run_id),
            journal=Journal(self.attempt.journal / "rollout.0.jsonl"),
            key=KEY,
        )

    def run(self):
        self.recipe.groups["rollout"].role.run(self.context)
        return self.rows()

    def rows(self):
        rows = {}
        while True:
            try:
                batch = self.sink.read(SAMPLES, CREATED_NAMES, max_rows=64, wait_s=10)
            except EndOfStream:
                return rows
            assert batch is not None
            for i in range(len(batch)):
                row = {name: column[i] for name, column in batch.columns.items()}
                rows[int(row["prompt_number"]), int(row["sample_index"])] = row


@pytest.mark.slow
def test_rows_of_a_real_engine(tmp_path, role, engine, tiny_model):
    from hpcrl.data.tokenizer import PromptEncoder

    rows = Bench(tmp_path, make_recipe(role, steps=1), [engine]).run()
    assert sorted(rows) == [(k, i) for k in range(4) for i in range(2)]
    encoder = PromptEncoder(tiny_model)
    for (number, _), row in rows.items():
        item = json.loads(row["item"])
        assert encoder.decode(row["prompt_ids"]) == f"user {item['question']}assistant "
        assert int(item["answer"]) == 2 * int(item["question"].split()[0])
        count = len(row["response_ids"])
        assert 1 <= count <= 6
        assert row["rollout_logprobs"].shape == row["versions"].shape == (count,)
        assert (row["rollout_logprobs"] < 0).all()
        assert (row["versions"] == 0).all()
        assert row["response"] == encoder.decode(row["response_ids"])
        assert row["finish"] == ("stop" if row["response_ids"][-1] == 1 else "length")
        assert row["step"] == number // 4 == 0
    assert any(not np.array_equal(rows[k, 0]["response_ids"], rows[k, 1]["response_ids"]) for k in range(4))


@pytest.mark.slow
def test_a_run_repeats_and_another_seed_gives_another(tmp_path, role, engine):
    def sample(name, seed):
        rows = Bench(tmp_path / name, make_recipe(role, steps=1, seed=seed), [engine]).run()
        return {
            key: (row["item"], row["response_ids"].tolist(), row["rollout_logprobs"].tobytes()) for key, row in rows.items()
        }

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    first = sample("a", 5)
    assert sample("b", 5) == first
    assert sample("c", 6) != first


@pytest.mark.slow
def test_the_epochs_end_with_an_exact_batch(tmp_path, role, engine):
    bench = Bench(tmp_path, make_recipe(replace(role, epochs=1), window=None, steps=9), [engine])
    rows = bench.run()
    assert len({json.loads(row["item"])["source"] for row in rows.values()}) == 7
    assert sorted({(k, int(row["step"])) for (k, _), row in rows.items()}) == [(k, k // 4) for k in range(7)]


@pytest.mark.slow
def test_a_resumed_run_goes_on_after_the_trainers_save(tmp_path, role, engine):
    bench = Bench(tmp_path, make_recipe(role, window=None), [engine])
    run, cursor = bench.attempt.run, Cursor(step=1, prompts=4, beyond=frozenset({6}))
    saved = Manifest(run_id=run.run_id, attempt=1, step=1, number=1, cursor=cursor.to_record())
    (run.state / str(saved.name)).mkdir(parents=True)
    write_manifest(run.state, saved)
    assert sorted({k for k, _ in bench.run()}) == [4, 5, 7]


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, None])
def test_a_dead_engine_is_left_for_one_that_answers(tmp_path, role, engine, window, monkeypatch):
    monkeypatch.setattr("hpcrl.roles.generation._LOOKS", 1)
    monkeypatch.setattr("hpcrl.roles.generation._LOOK_DEADLINE_S", 0.5)
    # Nothing listens at the first address.
    bench = Bench(tmp_path, make_recipe(role, steps=1, window=window, engines=2), ["http://127.0.0.1:9", engine])
    assert len(bench.run()) == 8


@pytest.mark.slow
def test_what_an_engine_refuses_ends_the_role(tmp_path, role, engine):
    role = replace(role, sampling=Sampling(max_new_tokens=500))
    with pytest.raises(RoleFailed, match=r"refused prompts 0 ff.*context"):
        Bench(tmp_path, make_recipe(role), [engine]).run()


@pytest.mark.slow
def test_stop_ends_the_role_and_leaves_its_stream_open(tmp_path, role, engine):
    """A trainer that hears of the stop later must not take what is there for the last step's."""
    bench = Bench(tmp_path, make_recipe(role, steps=5), [engine])
    stopped = []

    def run() -> None:
        with pytest.raises(Stopped) as caught:
            role.run(bench.context)
        stopped.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    batch = bench.sink.read(SAMPLES, CREATED_NAMES, max_rows=2, wait_s=20)
    assert batch is not None
    bench.context.stop.set()
    thread.join(20)
    assert len(stopped) == 1
    while (batch := bench.sink.read(SAMPLES, CREATED_NAMES, max_rows=2, wait_s=0.2)) is not None:
        assert len(batch.columns["step"]) == 2


def test_checks_are_quiet_when_all_is_well(role):
    assert role.check(make_recipe(role)) == []


def test_every_problem_is_told_at_once(role):
    wrong = replace(role, inference="engine", concurrency=0, sampling=Sampling(max_new_tokens=0, temperature=0, top_p=2))
    problems = wrong.check(make_recipe(wrong))
    for said in ("max_new_tokens is 0", "temperature is 0", "top_p is 2", "'engine'; the recipe has", "concurrency is 0"):
        assert any(said in problem for problem in problems), said


def test_a_missing_model_and_a_bad_dataset(role, tmp_path):
    assert "does not exist" in replace(role, model="/no/model").check(make_recipe(role))[0]
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x"\n')
    bad = replace(role, dataset=Records(paths=(str(tmp_path / "bad.jsonl"),)))
    assert "bad.jsonl:1 is not JSON" in bad.check(make_recipe(bad))[0]


def test_every_prompt_that_does_not_fit_the_engines_context_is_named(role, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"prompt": "x" * n, "answer": "y"}) + "\n" for n in (3, 300, 4, 110)))
    long = replace(role, dataset=Records(paths=(str(path),)))
    problems = long.check(make_recipe(long))
    assert [problem.split(": ")[0] for problem in problems] == [f"{path}:2", f"{path}:4"]
    assert "max_new_tokens 6" in problems[1]
    assert "more than the context of 128" in problems[1]


def test_items_of_a_procedural_dataset_are_named_by_number(role):
    dataset = ReasoningGym(task="chain_sum", size=3, params={"min_digits": 60, "max_digits": 60})
    long = replace(role, dataset=dataset)
    assert long.check(make_recipe(long))[0].startswith("chain_sum item 0: prompt of ")
