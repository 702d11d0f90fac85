"""Turns over a real desk, which is killed; by real processes, which are killed and stopped."""

from __future__ import annotations

import base64
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.interface import DataPlane, SchemaError, TurnOver
from hpcrl.dataplane.seat import Seat
from hpcrl.recipe import ColocationRing, Limits, Recipe, RoleGroup, Schedule
from hpcrl.run.errors import Stopped
from hpcrl.run.stop import StopFlag
from hpcrl.testing.queue_processes import Contract, QueueProcesses

pytestmark = pytest.mark.slow
KEY = "0123456789abcdef" * 3
COUNTS = {"serve": 1, "train": 2, "judge": 1, "reward": 1}
RECIPE = Recipe(
    name="test",
    groups={name: RoleGroup(role=Contract()) for name in COUNTS},
    streams=(),
    schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    rings=(ColocationRing(name="gpus", members=("serve", "train", "judge"), fallback="serve"),),
    limits=Limits(call_s=60.0, wait_s=60.0),
)


@pytest.fixture
def options(queue: QueueProcesses) -> Callable[..., dict[str, Any]]:
    """How a process connects to a desk of the test's own."""
    queue.start_desk(RECIPE, COUNTS)

    def make(group: str, rank: int = 0, **more: Any) -> dict[str, Any]:
        common = {"queue": queue.address(), "recipe": RECIPE, "processes": COUNTS, "key": KEY}
        return {**common, "group": group, "rank": rank, **more}

    return make


@pytest.fixture
def plane(options: Callable[..., dict[str, Any]]) -> Iterator[Callable[..., DataPlane]]:
    made: list[DataPlane] = []

    def make(*arguments: Any, **more: Any) -> DataPlane:
        made.append(connect(**options(*arguments, **more)))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Holder:
    """A process of ``holder_process.py``."""

    def __init__(self, options: dict[str, Any]) -> None:
        text = base64.b64encode(pickle.dumps({**options, "ring": "gpus"})).decode()
        command = [sys.executable, str(Path(__file__).with_name("holder_process.py")), text]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def hears(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def holder() -> Iterator[Callable[[dict[str, Any]], Holder]]:
    made: list[Holder] = []

    def make(options: dict[str, Any]) -> Holder:
        made.append(Holder(options))
        return made[-1]

    yield make
    for one in made:
        one.end()


def take(seat: Seat, seconds: float = 60.0) -> int:
    seat.ask()
    turn = seat.wait(seconds)
    assert turn.settled, turn
    return turn.epoch


def leave(seat: Seat, epoch: int, news: str = "") -> None:
    seat.leave(epoch, freed=0, left=0, took_s=0.0, news=news)


def test_a_call_and_a_grant_are_heard_at_once(plane):
    serve, train = plane("serve").seat("gpus"), plane("train").seat("gpus")
    heard: list[float] = []

    def hold(epoch: int) -> None:
        for _ in range(10):
            assert serve.is_called(epoch, 60)
            heard.append(time.monotonic())
            leave(serve, epoch)
            epoch = take(serve)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold, take(serve))
        rounds = []
        for _ in range(10):
            time.sleep(0.05)
            began = time.monotonic()
            epoch = take(train)
            rounds.append(time.monotonic() - began)
            leave(train, epoch, '{"version": 1}')
        holding.result(60)
    # Where anybody polled, each would take a poll's pause twice.
    assert sorted(rounds)[5] < 0.2, rounds
    assert serve.wait(0).news == '{"version": 1}'


def test_a_group_that_is_no_member_has_no_seat(plane):
    with pytest.raises(SchemaError, match="group 'reward' takes no turns in a ring 'gpus'"):
        plane("reward").seat("gpus")


def test_a_stop_ends_the_wait(plane):
    stop = StopFlag()
    take(plane("serve").seat("gpus"))
    seat = plane("train", stop=stop).seat("gpus")
    seat.ask()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(Stopped, match="get the token of ring 'gpus'"):
        seat.wait(60)


def test_a_desk_that_is_killed_during_hand_overs_loses_nothing(plane, queue):
    """One thread of each process at full rate; whoever has a turn is alone with its group, whatever becomes of the desk."""
    end, lock = threading.Event(), threading.Lock()
    inside: dict[str, int] = {}
    turns: list[tuple[int, str]] = []

    def enter(who: str, epoch: int) -> None:
        with lock:
            assert {name.partition(".")[0] for name in inside} <= {who.partition(".")[0]}, (who, inside)
            assert not turns or epoch >= turns[-1][0]
            inside[who] = epoch
            turns.append((epoch, who))

    def work(group: str, rank: int) -> None:
        seat, who = plane(group, rank).seat("gpus"), f"{group}.{rank}"
        while not end.is_set():
            epoch = take(seat)
            enter(who, epoch)
            if group == "serve":
                while not (end.is_set() or seat.is_called(epoch, 0.5)):
                    pass
            with lock:
                del inside[who]
            leave(seat, epoch)

    draw = random.Random(5)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, group, rank) for group, rank in (("serve", 0), ("train", 0), ("train", 1), ("judge", 0))]
        try:
            for _ in range(6):
                time.sleep(0.1 + 0.3 * draw.random())
                with lock:
                    before = len(turns)
                queue.kill("queue.0")
                queue.start_desk(RECIPE, COUNTS)
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and len(turns) < before + 8 and not any(job.done() for job in jobs):
                    time.sleep(0.01)
                assert len(turns) >= before + 8, "it does not go on"
        finally:
            end.set()
            for job in jobs:
                job.result(120)
    epochs = [epoch for epoch, _ in turns]
    assert {who for _, who in turns} == {"serve.0", "train.0", "train.1", "judge.0"}
    by_epoch = {epoch: {who.partition(".")[0] for at, who in turns if at == epoch} for epoch in set(epochs)}
    assert all(len(groups) == 1 for groups in by_epoch.values())


def test_a_holder_that_is_killed_gives_way_once_it_is_started_again(plane, options, holder):
    held = holder(options("serve"))
    assert held.hears() == "has 1"
    train = plane("train").seat("gpus")
    held.process.kill()
    train.ask()
    assert not train.wait(0.5).settled, "nobody knows yet that it is dead"
    again = holder(options("serve", incarnation=1))
    assert train.wait(60).settled
    leave(train, 2)
    assert again.hears() == "has 3"


def test_a_holder_that_is_killed_for_good_is_reclaimed_when_its_lease_ends(plane, options, holder):
    held = holder(options("serve", lease_s=1.5))
    assert held.hears() == "has 1"
    held.process.kill()
    train = plane("train").seat("gpus")
    began = time.monotonic()
    assert take(train) == 2
    assert time.monotonic() - began < 30


def test_a_holder_that_was_stopped_is_fenced_and_lets_go_when_it_goes_on(plane, options, holder):
    held = holder(options("serve", lease_s=1.5))
    assert held.hears() == "has 1"
    os.kill(held.process.pid, signal.SIGSTOP)
    train = plane("train").seat("gpus")
    assert take(train) == 2
    os.kill(held.process.pid, signal.SIGCONT)
    heard = held.hears()
    # That it is called may have been on its way before its turn was over.
    assert (held.hears() if heard == "called" else heard) == "stale", "it hears that its turn is over"
    assert train.wait(0).settled, "and takes nothing from anybody"
    leave(train, 2)
    assert held.hears() == "has 3"
    with pytest.raises(TurnOver, match="epoch 2, is over; serve has it, epoch 3"):
        leave(train, 2)
