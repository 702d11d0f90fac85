"""Taking turns, with memory that is only counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.engines.device_memory import Released
from hpcrl.recipe import ColocationRing, Limits, Recipe, RoleGroup, Schedule
from hpcrl.roles import turns as module
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.turns import GIB, Turns
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import RoleFailed, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.testing.queue_processes import Contract
from hpcrl.tracking.journal import Journal, JournalReader

COUNTS = {"serve": 1, "train": 2, "judge": 1, "reward": 1}


class Device:
    """Fake memory of one GPU of 10 GiB, which members fill."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used: dict[str, int] = {}

    def put(self, who: str, size: int) -> None:
        with self.lock:
            self.used[who] = size
            assert sum(self.used.values()) <= 10 * GIB, f"out of memory: {self.used}"


class FakeMemory:
    """One process's part of a device: 8 GiB while it has its turn, 0.5 GiB else."""

    def __init__(self, device: Device, who: str) -> None:
        self.device, self.who = device, who
        self.left = GIB // 2
        device.put(who, self.left)

    def release(self) -> Released:
        self.device.put(self.who, self.left)
        return Released(8 * GIB - self.left, self.left)

    def resume(self) -> int:
        self.device.put(self.who, 8 * GIB)
        return 8 * GIB


class Bench:
    """Contexts of the processes of one run."""

    def __init__(self, path: Path, **ring: Any) -> None:
        self.attempt = RunDirectory.create(path / "run", name="t", recipe_json="{}").new_attempt()
        self.hub = MemoryHub()
        self.recipe = Recipe(
            name="t",
            groups={name: RoleGroup(role=Contract()) for name in COUNTS},
            streams=(),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            rings=(ColocationRing(name="gpus", members=("serve", "train", "judge"), **{"fallback": "serve", **ring}),),
            limits=Limits(wait_s=30.0),
        )
        self.contexts: list[RoleContext] = []

    def context(self, group: str, rank: int = 0, gpus: tuple[int, ...] = (), lease_s: float = 30.0) -> RoleContext:
        stop = StopFlag()
        queue = connect(self.hub, self.recipe, group=group, rank=rank, processes=COUNTS, stop=stop, lease_s=lease_s)
        made = RoleContext(
            recipe=self.recipe,
            identity=Identity(group, rank, rank, COUNTS[group], gpus=gpus),
            attempt=self.attempt,
            queue=queue,
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", "t"),
            journal=Journal(self.attempt.journal / f"{group}.{rank}.jsonl"),
            key="",
            stop=stop,
        )
        self.contexts.append(made)
        return made

    def records(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        return [(who, record) for who, record in JournalReader(self.attempt.journal).read() if record["kind"] == kind]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(**ring: Any) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), **ring))
        return made[-1]

    yield make
    for bench in made:
        for context in bench.contexts:
            context.stop.set()
            context.queue.close()
            context.journal.close()


def test_four_processes_of_three_groups_never_have_their_memory_together(make_bench):
    bench, device, rounds = make_bench(), Device(), 15
    contexts = {
        f"{group}.{rank}": bench.context(group, rank)
        for group in ("serve", "train", "judge")
        for rank in (0, 1)[: COUNTS[group]]
    }
    busy: set[str] = set()
    done = threading.Event()

    def on_demand(who: str) -> None:
        # Ranks of one group have GPUs of their own; one of them stands for all here.
        memory = FakeMemory(device, who) if who != "train.1" else None
        turns = Turns(contexts[who], memory)
        turns._away = memory is not None
        for step in range(rounds):
            with turns.turn(step) as turn:
                busy.add(who)
                assert {name.partition(".")[0] for name in busy} == {who.partition(".")[0]}
                if who == "train.0":
                    turn.news = {"version": step}
                busy.discard(who)

    def fallback() -> None:
        turns = Turns(contexts["serve.0"], FakeMemory(device, "serve.0"))
        turns._away = True
        while not done.is_set():
            turn = turns.take()
            turns.ready(load_s=0.0)
            seen.append(-1 if turn.found is None else turn.found["version"])
            busy.add("serve.0")
            assert busy == {"serve.0"}
            while not done.is_set() and not turns.is_called(0.2):
                pass
            busy.discard("serve.0")
            turns.hand_on()

    seen: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        serving = pool.submit(fallback)
        jobs = [pool.submit(on_demand, who) for who in ("train.0", "train.1", "judge.0")]
        try:
            for job in jobs:
                job.result(60)
            wait_for("the fallback to have its turn", lambda: seen[-1:] == [rounds - 1] or None, seconds=30)
        finally:
            done.set()
            serving.result(60)
    assert seen == sorted(seen), "what is handed on with the token is never older than before"
    assert sum(device.used.values()) <= 2 * GIB
    handed = [record for who, record in bench.records("handover") if who == "serve.0" and record["giver"]]
    assert handed[-1]["freed_bytes"] == 8 * GIB - GIB // 2
    assert handed[-1]["resumed_bytes"] == 8 * GIB
    assert handed[-1]["load_s"] == 0
    assert all(record["seconds"] >= record["gave_s"] >= 0 for record in handed)
    assert len([1 for who, _ in bench.records("let_go") if who == "judge.0"]) == rounds


def test_a_group_of_no_ring_and_a_ring_without_a_token_have_every_turn_at_once(make_bench):
    for bench, group in ((make_bench(), "reward"), (make_bench(fallback=""), "train")):
        turns = Turns(bench.context(group), FakeMemory(Device(), group))
        assert not turns.active
        with turns.turn(3) as turn:
            assert turn.epoch == 0
        assert not turns.is_called(60)
        assert bench.records("let_go") == []


def test_memory_that_is_not_let_go_of_keeps_the_token_with_both_numbers(make_bench):
    bench = make_bench(rest_gib=1.0)
    memory = FakeMemory(Device(), "train.0")
    memory.left = 3 * GIB
    turns = Turns(bench.context("train"), memory)
    turns.take()
    with pytest.raises(
        RoleFailed, match=r"train\.0 on .*: ring gpus, it still has 3\.00 GiB by its own count, and 1 GiB may be"
    ):
        turns.hand_on()
    serve = bench.context("serve").queue.seat("gpus")
    serve.ask()
    assert serve.wait(0).holder == "train"


def test_a_gpu_that_others_still_use_is_neither_handed_on_nor_taken(make_bench, monkeypatch):
    bench, used = make_bench(rest_gib=1.5), [4.0]
    monkeypatch.setattr(module, "FREE_S", 0.3)
    monkeypatch.setattr("hpcrl.engines.device_memory.gpu_used_bytes", lambda gpu: int(used[gpu] * GIB))
    turns = Turns(bench.context("train", gpus=(0,)))
    turns.take()
    used[0] = 4.75
    with pytest.raises(RoleFailed) as failed:
        turns.hand_on()
    assert "train.0 on " in str(failed.value)
    assert "cannot hand on: of GPU 0 4.75 GiB are in use, and 4.5 GiB may be (3 members that keep 1.5 GiB each)" in str(
        failed.value
    )
    assert "train.0.log" in str(failed.value)
    assert "rings.gpus.rest_gib" in str(failed.value)
    other = Turns(make_bench(rest_gib=1.5).context("judge", gpus=(0,)))
    with pytest.raises(RoleFailed, match=r"has the token, and cannot use it: of GPU 0 4\.75 GiB are in use"):
        other.take()


def test_a_fallback_that_does_not_let_go_in_time_is_named_with_its_host_and_log(make_bench):
    bench = make_bench(let_go_s=0.2)
    Turns(bench.context("serve")).take()
    with pytest.raises(RoleFailed) as failed:
        Turns(bench.context("train")).take(step=4)
    text = str(failed.value)
    assert "train.0 on " in text
    assert "the GPUs of ring gpus did not come within 0.2 s: serve has had them for " in text
    assert "(epoch 1), was asked to let go " in text
    assert "not let go: serve.0 on " in text
    assert "logs/serve.0.log" in text
    assert "raise rings.gpus.let_go_s" in text


def test_another_member_that_keeps_them_is_named_at_the_deadline_of_every_wait(make_bench):
    bench = make_bench()
    bench.recipe = replace(bench.recipe, limits=Limits(wait_s=0.2))
    Turns(bench.context("judge")).take()
    with pytest.raises(RoleFailed, match=r"judge has had them .*logs/judge\.0\.log.*raise limits\.wait_s"):
        Turns(bench.context("train")).take()


def test_a_stop_ends_the_wait_for_a_turn(make_bench):
    bench = make_bench()
    Turns(bench.context("serve")).take()
    context = bench.context("train")
    context.stop.set()
    with pytest.raises(Stopped):
        Turns(context).take()


def test_a_process_whose_turn_was_taken_away_says_so_and_goes_on(make_bench):
    bench = make_bench()
    silent = bench.context("train", lease_s=1.0)
    turns = Turns(silent, FakeMemory(Device(), "train.0"))
    turns.take()
    # As if it were stopped: no sign of life comes from it.
    silent.queue._end.set()
    judge = Turns(bench.context("judge"))
    assert judge.take().epoch == 2
    turns.hand_on()
    ((who, record),) = bench.records("fenced")
    assert (who, record["epoch"]) == ("train.0", 1)
    judge.hand_on()
    assert turns.take().epoch == 3


def test_after_an_error_the_process_still_has_its_turn(make_bench):
    turns = Turns(make_bench().context("judge"))
    with pytest.raises(ValueError, match="bad"), turns.turn():
        raise ValueError("bad")
    with turns.turn() as turn:
        assert turn.epoch == 1
