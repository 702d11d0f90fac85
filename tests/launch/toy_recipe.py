"""A recipe without models, through every part of a launch: numbers are made, doubled by another role, and added up."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpcrl.recipe import Column, FeedbackStream, Limits, Reads, Recipe, Resources, Role, RoleGroup, Schedule, Stream, Writes
from hpcrl.run.atomic import write_json
from hpcrl.run.errors import RoleFailed, Stopped

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext


@dataclass(frozen=True, kw_only=True)
class Source(Role):
    count: int = 40
    forever: bool = False
    deaf: bool = False

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="numbers", columns=("n",), creates=True),)

    def run(self, context: RoleContext) -> None:
        # In this order: a number that is added up meanwhile is then in both.
        done = context.queue.held("numbers") | set(added_up(context))
        number = context.identity.rank
        while number < self.count or self.forever:
            if context.stop.is_set() and not self.deaf:
                raise Stopped("enough")
            if number not in done:
                context.queue.put("numbers", {"n": np.array([number], np.int64)})
                context.phase("put", step=number)
            number += context.identity.world_size
        context.queue.close_stream("numbers")


@dataclass(frozen=True, kw_only=True)
class Doubler(Role):
    fail_at: int = -1
    how: str = "raise"

    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="numbers", columns=("n",)),)

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="numbers", columns=("twice",)),)

    def run(self, context: RoleContext) -> None:
        from hpcrl.dataplane.interface import EndOfStream

        while True:
            try:
                batch = context.read("numbers", ["n"], max_rows=8)
            except EndOfStream:
                break
            for block in batch.split():
                (number,) = block.columns["n"]
                if number == self.fail_at:
                    print("about to go wrong at", number, flush=True)
                    if self.how == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise RoleFailed(f"number {number} is not to be doubled", code=17)
                context.queue.fill(block, {"twice": np.array([2 * number], np.int64)})
        context.queue.close_stream("numbers")


@dataclass(frozen=True, kw_only=True)
class Sink(Role):
    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="numbers", columns=("n", "twice"), final=True),)

    def run(self, context: RoleContext) -> None:
        from hpcrl.dataplane.interface import EndOfStream

        known = set(added_up(context))
        try:
            while True:
                batch = context.read("numbers", ["n", "twice"], max_rows=8)
                assert [2 * n for n in batch.columns["n"]] == list(batch.columns["twice"])
                with open(context.attempt.run.path / "seen", "a") as file:
                    file.writelines(f"{n}\n" for n in batch.columns["n"] if n not in known)
                # Had again only by a sink that was killed between these two.
                context.queue.acknowledge(batch)
        except EndOfStream:
            pass
        finally:
            write_json(context.attempt.run.path / "seen.json", sorted(added_up(context)))


def added_up(context: RoleContext) -> list[int]:
    """Numbers that a sink, of whatever life, has seen."""
    try:
        return [int(line) for line in (context.attempt.run.path / "seen").read_text().splitlines()]
    except FileNotFoundError:
        return []


@dataclass(frozen=True, kw_only=True)
class Idler(Role):
    """A service: it waits for its stop."""

    service: ClassVar[bool] = True

    def run(self, context: RoleContext) -> None:
        context.rendezvous.publish("idler", os.getpid())
        while not context.stop.sleep(60):
            pass


def recipe(
    count: int = 40,
    forever: bool = False,
    deaf: bool = False,
    fail_at: int = -1,
    how: str = "raise",
    doublers: int = 2,
    gpus: int = 0,
) -> Recipe:
    return Recipe(
        name="toy",
        groups={
            "source": RoleGroup(role=Source(count=count, forever=forever, deaf=deaf), replicas=2),
            "doubler": RoleGroup(role=Doubler(fail_at=fail_at, how=how), replicas=doublers, resources=Resources(gpus=gpus)),
            "sink": RoleGroup(role=Sink()),
            "idler": RoleGroup(role=Idler()),
        },
        streams=(
            Stream(
                name="numbers",
                columns=(Column(name="n", dtype="int64"), Column(name="twice", dtype="int64")),
                block_rows=1,
                capacity_rows=64,
                prompt="n",
            ),
        ),
        feedback=(FeedbackStream(name="unused"),),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
        limits=Limits(start_s=120, wait_s=60, drain_s=20),
    )
