from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from hpcrl.plan.plan import check_recipe
from hpcrl.recipe import (
    ColocationRing,
    Column,
    FeedbackStream,
    Limits,
    Reads,
    Recipe,
    Resources,
    Role,
    RoleGroup,
    Schedule,
    Stream,
    Writes,
)


@dataclass(frozen=True, kw_only=True)
class FakeRole(Role):
    r: Any = ()
    w: Any = ()
    hears: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()

    def reads(self):
        return self.r

    def writes(self):
        return self.w

    def listens(self):
        return self.hears

    def announces(self):
        return self.tells


class FakeSpmd(FakeRole):
    process_per_gpu = True


class Takes(FakeRole):
    takes_turns = True


class Gives(FakeRole):
    gives_way = True


def group(r=(), w=(), *, replicas=1, gpus=0, cpus=1, after=(), kind=FakeRole, **more) -> RoleGroup:
    return RoleGroup(role=kind(r=r, w=w, **more), replicas=replicas, after=after, resources=Resources(gpus=gpus, cpus=cpus))


CREATE = Writes(stream="samples", columns=("response",), creates=True)
REWARD = Writes(stream="samples", columns=("reward",))
READ = Reads(stream="samples", columns=("response",))
FINAL = Reads(stream="samples", columns=("response", "reward"), final=True)
GROUPS = {
    "rollout": group(w=(CREATE,), hears=("gate",)),
    "reward": group(r=(READ,), w=(REWARD,)),
    "trainer": group(r=(FINAL,), tells=("gate",)),
}
STREAM = Stream(
    name="samples", columns=(Column(name="response", dtype="int32", ragged=True), Column(name="reward", dtype="float32"))
)
GOOD = Recipe(
    name="good",
    groups=GROUPS,
    streams=(STREAM,),
    feedback=(FeedbackStream(name="gate"),),
    schedule=Schedule(steps=1, prompts_per_step=2, samples_per_prompt=4),
)


def with_groups(**groups: RoleGroup) -> Recipe:
    return dataclasses.replace(GOOD, groups={**GROUPS, **groups})


def with_schedule(**values: Any) -> Recipe:
    return dataclasses.replace(GOOD, schedule=dataclasses.replace(GOOD.schedule, **values))


def with_stream(**values: Any) -> Recipe:
    return dataclasses.replace(GOOD, streams=(dataclasses.replace(STREAM, **values),))


def with_ring(*members: str, **groups: RoleGroup) -> Recipe:
    return dataclasses.replace(with_groups(**groups), rings=(ColocationRing(name="ring", members=members),))


def test_a_sound_recipe_has_no_problem():
    assert check_recipe(GOOD) == []


BAD = {
    "nobody produces": (
        with_groups(rollout=group(w=(CREATE,)), reward=group(r=(READ,))),
        ["stream samples: column reward is read by trainer and nobody produces it"],
    ),
    "two produce": (
        with_groups(judge=group(r=(READ,), w=(REWARD,))),
        ["stream samples: column reward is produced by judge and reward; exactly one group may"],
    ),
    "two create": (
        with_groups(reward=group(r=(READ,), w=(dataclasses.replace(REWARD, creates=True),))),
        ["stream samples: groups reward and rollout all create its rows; exactly one may"],
    ),
    "no creator": (
        with_groups(
            rollout=group(r=(Reads(stream="samples", columns=("reward",)),), w=(dataclasses.replace(CREATE, creates=False),))
        ),
        ["no group creates its rows", "groups wait for each other"],
    ),
    "no final": (
        with_groups(trainer=group(r=(dataclasses.replace(FINAL, final=False),))),
        ["stream samples: no group clears its rows; exactly one reader must have final=True"],
    ),
    "two final": (
        with_groups(other=group(r=(FINAL,))),
        ["stream samples: groups other and trainer are all its final reader; exactly one may be"],
    ),
    "reads what may be gone": (
        with_groups(logger=group(r=(READ,))),
        ["so trainer may clear rows before logger has read them; have logger fill a column that trainer reads"],
    ),
    "fills unread": (
        with_groups(reward=group(w=(REWARD,))),
        ["group reward fills columns of stream samples without reading it"],
    ),
    "stream name": (
        with_groups(trainer=group(r=(FINAL, Reads(stream="sample", columns=("x",))))),
        ["group trainer reads stream 'sample', which is not declared; nearest: samples"],
    ),
    "column name": (
        with_groups(other=group(r=(Reads(stream="samples", columns=("respons",)),))),
        ["group other reads column 'respons' of stream samples, which is not declared; nearest: response"],
    ),
    "feedback name": (
        with_groups(other=group(hears=("gates",))),
        ["group other listens to feedback stream 'gates', which is not declared; nearest: gate"],
    ),
    "no tuple": (
        with_groups(other=group(r=READ)),
        ["group other: reads() of its role must return a tuple of Reads"],
    ),
    "no columns": (
        with_groups(other=group(r=(Reads(stream="samples", columns=()),))),
        ["group other: each of reads() of its role must name a tuple of columns"],
    ),
    "block": (
        with_groups(trainer=group(r=(dataclasses.replace(FINAL, max_rows=8),))),
        ["group trainer reads at most 8 rows of stream samples at a time, less than a block of it (256 rows)"],
    ),
    "dtype": (
        with_stream(columns=(*STREAM.columns, Column(name="x", dtype="float23"))),  # type: ignore[arg-type]
        ["column x has dtype 'float23'; nearest: float32"],
    ),
    "ragged str": (with_stream(columns=(*STREAM.columns, Column(name="x", dtype="str", ragged=True))), ["is ragged"]),
    "finite text": (
        with_stream(columns=(*STREAM.columns, Column(name="x", dtype="str", finite=True))),
        ["column x is finite, which only a float column can be"],
    ),
    "prompt": (with_stream(prompt="respnse"), ["prompt names column 'respnse', which is not declared; nearest: response"]),
    "prompt of a kind": (
        with_stream(prompt="response"),
        ["prompt names column 'response', which is ragged int32; it must hold"],
    ),
    "late version": (with_stream(version="reward"), ["version names column 'reward', which is float32; it must hold whole"]),
    "late prompt": (
        with_stream(prompt="reward", columns=(STREAM.columns[0], Column(name="reward", dtype="int64"))),
        ["prompt names column 'reward', which rows are not put with; prompt must be known from the start"],
    ),
    "tokens": (
        with_stream(tokens=("response", "reward", "respons")),
        [
            "tokens names column 'reward', which is float32; it must be ragged",
            "tokens names column 'respons', which is not declared; nearest: response",
        ],
    ),
    "aligned": (
        with_stream(aligned=(("response", "reward"),)),
        ["aligned names column 'reward', which is float32; it must be ragged"],
    ),
    "aligned with itself": (
        with_stream(aligned=(("response",), "response")),  # type: ignore[arg-type]
        ["aligned has ('response',); it must be groups of two or more", "aligned has 'response'; it must be groups"],
    ),
    "aligned apart": (
        with_stream(
            aligned=(("response", "reward"),),
            columns=(STREAM.columns[0], Column(name="reward", dtype="float32", ragged=True)),
        ),
        ["aligned names columns response, reward, which are not written together"],
    ),
    "row bytes": (with_stream(max_row_bytes=0), ["max_row_bytes is 0; it must be at least 1"]),
    "bytes": (with_stream(capacity_bytes=-1), ["capacity_bytes is -1; it must be at least 1"]),
    "column twice": (with_stream(columns=(*STREAM.columns, STREAM.columns[0])), ["column response is declared twice"]),
    "stream twice": (dataclasses.replace(GOOD, streams=(STREAM, STREAM)), ["stream samples is declared twice"]),
    "stream and feedback": (
        dataclasses.replace(GOOD, feedback=(*GOOD.feedback, FeedbackStream(name="samples"))),
        ["samples is declared both as a stream and as a feedback stream"],
    ),
    "block rows": (with_stream(block_rows=0), ["block_rows is 0"]),
    "capacity": (with_stream(capacity_rows=100), ["capacity_rows 100 is below one block (256 rows)"]),
    "group name": (with_groups(Other=group()), ["group 'Other': a name is lower-case letters"]),
    "queue": (with_groups(queue=group()), ["group queue: that name is the data plane's own"]),
    "group size": (with_schedule(samples_per_prompt=0), ["schedule.samples_per_prompt (the group size) is 0"]),
    "steps": (with_schedule(steps=0), ["schedule.steps is 0"]),
    "prompts": (with_schedule(prompts_per_step=-1), ["schedule.prompts_per_step is -1"]),
    "window": (with_schedule(window=0), ["schedule.window is 0; it must be at least 1, or None"]),
    "window and lag": (
        dataclasses.replace(with_schedule(window=3), limits=Limits(version_lag=1)),
        ["schedule.window 3 lets generation run 2 versions ahead and limits.version_lag allows 1"],
    ),
    "lag": (dataclasses.replace(GOOD, limits=Limits(version_lag=-1)), ["limits.version_lag is -1"]),
    "snapshots": (dataclasses.replace(GOOD, limits=Limits(snapshot_s=-1)), ["limits.snapshot_s is -1"]),
    "deadline": (dataclasses.replace(GOOD, limits=Limits(wait_s=0)), ["limits.wait_s is 0"]),
    "replicas": (with_groups(other=group(replicas=0)), ["group other: replicas is 0"]),
    "cpus": (with_groups(other=group(cpus=0)), ["group other: cpus is 0"]),
    "gpus": (with_groups(other=group(gpus=-1)), ["group other: gpus is -1"]),
    "after": (with_groups(other=group(after=("trianer",))), ["starts after 'trianer', which is no group; nearest: trainer"]),
    "no world": (with_groups(other=group(gpus=2, kind=FakeSpmd)), ["runs a process on each of 2 GPUs that form no world"]),
    "no role": (with_groups(other=RoleGroup(role="trainer")), ["group other: its role is a str, not a Role"]),  # type: ignore[arg-type]
    "ring member": (with_ring("trainer", "rolout"), ["ring ring: member 'rolout' is no group; nearest: rollout"]),
    "ring of one": (with_ring("trainer"), ["ring ring: it needs at least two different members"]),
    "ring need": (
        with_ring("a", "b", a=group(gpus=2, replicas=3), b=group(gpus=4)),
        ["its members must need the same number of GPUs in all: a 6 (3 x 2), b 4 (1 x 4)"],
    ),
    "token": (
        dataclasses.replace(
            with_groups(engine=group(kind=Gives), judge=group(kind=Takes)),
            rings=(
                ColocationRing(
                    name="ring", members=("engine", "judge", "trainer"), fallback="judge", rest_gib=-1.0, let_go_s=0
                ),
            ),
        ),
        [
            "ring ring: member engine never asks for the token: Gives must take its turns by hpcrl.roles.turns and say so "
            "(takes_turns = True), or be the fallback",
            "ring ring: judge cannot be the fallback: Takes does not let go when another member asks (gives_way)",
            "ring ring: member trainer never asks for the token: FakeRole",
            "ring ring: rest_gib is -1.0; it must be at least 0",
            "ring ring: let_go_s is 0; it must be above 0 seconds",
        ],
    ),
    "token of nobody": (
        dataclasses.replace(
            with_groups(engine=group(kind=Takes), judge=group(kind=Takes)),
            rings=(ColocationRing(name="ring", members=("engine", "judge"), fallback="enigne"),),
        ),
        ["ring ring: fallback 'enigne' is no member; nearest: engine"],
    ),
    "two rings": (
        dataclasses.replace(
            GOOD,
            rings=(
                ColocationRing(name="one", members=("trainer", "rollout")),
                ColocationRing(name="two", members=("trainer", "reward")),
            ),
        ),
        ["group trainer is in rings one and two; it may be in one at most"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_is_found_and_nothing_else(name):
    recipe, says = BAD[name]
    problems = check_recipe(recipe)
    assert len(problems) == len(says), problems
    for problem, part in zip(problems, says, strict=True):
        assert part in problem


def test_all_faults_come_at_once():
    recipe = dataclasses.replace(with_schedule(steps=0, samples_per_prompt=0), groups={"rollout": GROUPS["rollout"]})
    assert len(check_recipe(recipe)) == 3
