"""JustRL: a 1.5B reasoning model made better at maths by plain GRPO, in one stage with fixed hyper-parameters.

He et al. 2025, "JustRL: Scaling a 1.5B LLM with a Simple RL Recipe": DeepSeek-R1-Distill-Qwen-1.5B on DAPO-Math-17k, 256
prompts of 8 samples a step, up to 15,360 new tokens, a constant learning rate of 1e-6, clipping at 0.2 below and 0.28 above,
mini-batches of 64 prompts, no KL term; optimizer and normalisation over tokens as verl has them. Here lock-step: generation and
training take turns on the same GPUs. ``justrl_async.py`` and ``justrl_fully_async.py`` are this recipe with few fields changed.
Run it with::

    hpcrl submit recipes/justrl.py --nodes 1 --gpus-per-node 8 --set model=/models/R1-1.5B --set data=/data/dapo.parquet

``--nodes`` and ``--gpus-per-node`` rescale it. ``--set engine=embedded --set gpus_per_node=0`` and small sizes run it on a
CPU.
"""

from __future__ import annotations

import os
from typing import Literal

from hpcrl.data.records import Records
from hpcrl.engines.completion import Sampling
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.recipe import ColocationRing, Limits, Recipe, Resources, RoleGroup, Schedule
from hpcrl.roles.feedback import feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer
from hpcrl.run.errors import CheckFailed

# What DAPO-Math-17k has around each problem asks for another form of answer.
PROBLEM = r"^Solve the following math problem step by step\.[^\n]*\n\n(.*?)\n\nRemember to put your answer on its own line"
ASKED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def recipe(
    name: str = "justrl",
    model: str = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    data: str = "BytedTsinghua-SIA/DAPO-Math-17k",
    prompt_field: str = "prompt",
    answer_field: str = "reward_model.ground_truth",
    steps: int = 4000,
    prompts_per_step: int = 256,
    samples_per_prompt: int = 8,
    max_prompt_tokens: int = 1024,
    max_new_tokens: int = 15_360,
    lr: float = 1e-6,
    minibatches: int = 4,
    placement: Literal["colocated", "apart"] = "colocated",
    window: int | None = 1,
    stream_minibatches: bool = False,
    engine: Literal["sglang", "embedded"] = "sglang",
    nodes: int = 1,
    gpus_per_node: int = 8,
    trainer_gpus: int | None = None,
    tensor_parallel: int = 1,
    cpus: int = 8,
    reward_cpus: int = 8,
    tokens_per_microbatch: int = 32_768,
    save_every: int = 20,
    seed: int = 0,
) -> Recipe:
    """JustRL on any model and any maths dataset.

    Args:
        data: JSON-lines or Parquet file, a folder of them, or a Hugging Face name. Where a prompt is there several times, as
            in DAPO-Math-17k, only the first counts.
        prompt_field, answer_field: see :class:`~hpcrl.data.records.Records`.
        minibatches: optimizer steps on each batch.
        placement: whether generation and training take turns on all GPUs, or each has its own.
        window: how far generation runs ahead; none has no window.
        stream_minibatches: train each mini-batch as soon as it is there; needs window none.
        engine: what generates.
        nodes, gpus_per_node: GPUs in all; 0 runs on the CPU.
        trainer_gpus: of these, so many train where placement is apart; none takes half.
        tensor_parallel: GPUs of one engine.
        cpus: cores of each of the engines and of the trainer's processes.
        reward_cpus: cores that grade.
        save_every: steps between saves of the trainer's state.
    """
    training, serving = _split(nodes * gpus_per_node, placement, trainer_gpus, tensor_parallel)
    if training > (most := prompts_per_step * samples_per_prompt // minibatches):
        raise CheckFailed([f"{training} GPUs would train on mini-batches of {most} samples; take fewer GPUs or larger batches"])
    files = os.path.abspath(data) if os.path.exists(data) else data
    dataset = Records(
        paths=(files,),
        prompt_field=prompt_field,
        answer_field=answer_field,
        prompt_keep=PROBLEM,
        prompt_end=ASKED,
        distinct=True,
    )
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=1.0)
    context = max_prompt_tokens + max_new_tokens
    colocated = placement == "colocated"
    ring = ColocationRing(name="gpu", members=("inference", "trainer"), fallback="inference" if training else "")
    return Recipe(
        name=name,
        groups={
            "rollout": RoleGroup(
                role=Rollout(model=model, dataset=dataset, sampling=sampling, concurrency=2 * prompts_per_step),
                resources=Resources(cpus=2),
            ),
            "inference": RoleGroup(
                role=Inference(
                    model=model,
                    dtype="bfloat16",
                    max_context=context,
                    transport="auto",
                    sglang=Sglang(memory_saver=colocated) if engine == "sglang" else None,
                ),
                replicas=max(1, serving // tensor_parallel),
                resources=Resources(gpus=tensor_parallel if serving else 0, cpus=cpus),
            ),
            "reward": RoleGroup(
                role=Reward(function="hpcrl.data.graders:math_verify", sample_s=10.0), resources=Resources(cpus=reward_cpus)
            ),
            "trainer": RoleGroup(
                role=Trainer(
                    model=model,
                    lr=lr,
                    betas=(0.9, 0.999),
                    weight_decay=0.01,
                    compute_dtype="bfloat16",
                    temperature=sampling.temperature,
                    clip_low=0.2,
                    clip_high=0.28,
                    minibatches=minibatches,
                    stream_minibatches=stream_minibatches,
                    tokens_per_microbatch=tokens_per_microbatch,
                    activation_checkpointing="full",
                    context=context,
                    save_every=save_every,
                ),
                replicas=max(1, training),
                resources=Resources(gpus=1 if training else 0, cpus=cpus),
            ),
        },
        streams=(samples_stream(samples_per_prompt=samples_per_prompt),),
        feedback=feedback_streams(),
        rings=(ring,) if colocated else (),
        schedule=Schedule(steps=steps, prompts_per_step=prompts_per_step, samples_per_prompt=samples_per_prompt, window=window),
        # A batch of the longest answers takes long on few GPUs.
        limits=Limits(wait_s=7200.0),
        seed=seed,
    )


def _split(gpus: int, placement: str, trainer_gpus: int | None, tensor_parallel: int) -> tuple[int, int]:
    """GPUs for training and for generation."""
    training, serving = gpus, gpus
    if placement == "apart" and gpus:
        training = gpus // 2 if trainer_gpus is None else trainer_gpus
        serving = gpus - training
    elif trainer_gpus is not None and trainer_gpus != gpus:
        raise CheckFailed([f"trainer_gpus {trainer_gpus} goes with placement apart; colocated, all {gpus} GPUs train in turn"])
    problems = []
    if gpus and min(training, serving) < 1:
        problems.append(f"{gpus} GPU{'s' if gpus > 1 else ''} apart would be {training} for training and {serving} for engines")
    if tensor_parallel < 1 or serving % tensor_parallel:
        problems.append(f"{serving} GPUs for generation cannot be engines of tensor_parallel {tensor_parallel} GPUs each")
    if problems:
        raise CheckFailed(problems)
    return training, serving
