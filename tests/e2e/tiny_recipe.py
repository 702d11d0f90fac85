"""The whole loop on a model of a few thousand weights: text is good when it is full of vowels.

Everything computes in float32, so that runs can be compared bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tiny_helper import vowel_share  # beside this file, as a person's helpers are

from hpcrl.data.records import Records
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import Column, Limits, Reads, Recipe, Resources, Role, RoleGroup, Schedule, Stream, Writes
from hpcrl.roles.feedback import feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext


@dataclass(frozen=True, kw_only=True)
class Vowels(Role):
    """A person's own role: measures each response into a column of its own."""

    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="samples", columns=("response",)),)

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="samples", columns=("vowels",)),)

    def run(self, context: RoleContext) -> None:
        from hpcrl.dataplane.interface import EndOfStream

        try:
            while True:
                for block in context.read("samples", ["response"], max_rows=64).split():
                    shares = [vowel_share(response) for response in block.columns["response"]]
                    context.queue.fill(block, {"vowels": np.array(shares, np.float32)})
        except EndOfStream:
            context.queue.close_stream("samples")


@dataclass(frozen=True, kw_only=True)
class VowelReward(Role):
    """A reward that only looks at what :class:`Vowels` measured, or ruins it."""

    spoilt: bool = False

    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="samples", columns=("step", "vowels")),)

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="samples", columns=("reward", "outcome")),)

    def run(self, context: RoleContext) -> None:
        from hpcrl.dataplane.interface import EndOfStream

        try:
            while True:
                for block in context.read("samples", ["step", "vowels"], max_rows=64).split():
                    rewards = np.asarray(block.columns["vowels"], np.float32) * np.float32("nan" if self.spoilt else 1)
                    context.queue.fill(block, {"reward": rewards, "outcome": np.zeros(len(rewards), np.int8)})
        except EndOfStream:
            context.queue.close_stream("samples")


def recipe(
    model: str,
    data: str,
    steps: int = 3,
    prompts_per_step: int = 4,
    window: int | None = 1,
    version_lag: int = 4,
    epochs: int | None = None,
    reward: str = "tiny_helper:vowel_reward",
    own_role: bool = False,
    ranks: int = 1,
    replicas: int = 1,
    seed: int = 0,
) -> Recipe:
    """Four prompts a step, four short samples of each.

    Args:
        own_role: grade through the roles of this file instead of the built-in one.
        ranks: of the trainer.
        replicas: of every other role.
    """
    samples = 4
    groups = {
        "rollout": RoleGroup(
            role=Rollout(
                model=model,
                dataset=Records(paths=(data,)),
                sampling=Sampling(max_new_tokens=8, temperature=1.0),
                epochs=epochs,
            ),
            replicas=replicas,
        ),
        "inference": RoleGroup(
            role=Inference(model=model, dtype="float32", max_context=128), replicas=replicas, resources=Resources(cpus=1)
        ),
        "trainer": RoleGroup(
            role=Trainer(
                model=model,
                lr=1e-3,
                compute_dtype="float32",
                publish_dtype="float32",
                tokens_per_microbatch=512,
                keep_weights=100,
            ),
            replicas=ranks,
        ),
    }
    stream = samples_stream(samples_per_prompt=samples)
    if own_role:
        groups |= {"vowels": RoleGroup(role=Vowels()), "reward": RoleGroup(role=VowelReward())}
        stream = Stream(
            name=stream.name, columns=(*stream.columns, Column(name="vowels", dtype="float32")), block_rows=stream.block_rows
        )
    else:
        groups["reward"] = RoleGroup(role=Reward(function=reward, workers=1), replicas=replicas)
    return Recipe(
        name="tiny",
        groups=groups,
        streams=(stream,),
        feedback=feedback_streams(),
        schedule=Schedule(steps=steps, prompts_per_step=prompts_per_step, samples_per_prompt=samples, window=window),
        limits=Limits(version_lag=version_lag, start_s=120, wait_s=60, call_s=20, drain_s=30),
        seed=seed,
    )
