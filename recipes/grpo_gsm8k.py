"""The single-GPU baseline: GRPO on grade-school maths, any model directory in Hugging Face layout, any JSON-lines file.

The file's lines are those of gsm8k: ``{"question": …, "answer": "… #### 42"}``. Run it with::

    hpcrl run recipes/grpo_gsm8k.py --set model=/models/Qwen3-0.6B --set data=/data/gsm8k/train.jsonl

``--set engine=embedded`` does without SGLang; with ``--set gpus=0`` too it runs on the CPU, for a try with a small model.
"""

from __future__ import annotations

import os
from typing import Literal

from hpcrl.data.records import Records
from hpcrl.engines.completion import Sampling
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.recipe import ColocationRing, Recipe, Resources, RoleGroup, Schedule
from hpcrl.roles.feedback import feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer

SYSTEM = "Reason step by step, then give the final answer within \\boxed{}."


def recipe(
    model: str = "Qwen/Qwen3-0.6B",
    data: str = "gsm8k/train.jsonl",
    steps: int = 200,
    prompts_per_step: int = 32,
    samples_per_prompt: int = 8,
    max_prompt_tokens: int = 512,
    max_new_tokens: int = 1024,
    temperature: float = 1.0,
    lr: float = 1e-6,
    minibatches: int = 1,
    window: int | None = 1,
    engine: Literal["sglang", "embedded"] = "sglang",
    gpus: int = 1,
    cpus: int = 8,
    tokens_per_microbatch: int = 32_768,
    save_every: int = 50,
    seed: int = 0,
) -> Recipe:
    """GRPO on a maths dataset.

    Args:
        data: JSON-lines file with ``question`` and ``answer``.
        engine: what generates.
        gpus: GPUs, which generation and training use in turn; 0 runs on the CPU.
        cpus: cores of each of inference and trainer, and of the reward's workers.
        save_every: steps between saves of the trainer's state.
    """
    dataset = Records(
        paths=(os.path.abspath(data),), prompt_field="question", answer_field="answer", answer_after="####", system=SYSTEM
    )
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    context = max_prompt_tokens + max_new_tokens
    resources = Resources(gpus=gpus, cpus=cpus)
    served = Sglang(memory_saver=True) if engine == "sglang" else None
    return Recipe(
        name="grpo_gsm8k",
        groups={
            "rollout": RoleGroup(role=Rollout(model=model, dataset=dataset, sampling=sampling)),
            "inference": RoleGroup(
                role=Inference(model=model, dtype="bfloat16", max_context=context, sglang=served), resources=resources
            ),
            "reward": RoleGroup(
                role=Reward(function="hpcrl.data.graders:math_verify", sample_s=10.0), resources=Resources(cpus=min(cpus, 4))
            ),
            "trainer": RoleGroup(
                role=Trainer(
                    model=model,
                    lr=lr,
                    compute_dtype="bfloat16",
                    temperature=temperature,
                    minibatches=minibatches,
                    tokens_per_microbatch=tokens_per_microbatch,
                    activation_checkpointing="full",
                    save_every=save_every,
                ),
                resources=resources,
            ),
        },
        streams=(samples_stream(samples_per_prompt=samples_per_prompt),),
        feedback=feedback_streams(),
        rings=(ColocationRing(name="gpu", members=("inference", "trainer"), fallback="inference" if gpus else ""),),
        schedule=Schedule(steps=steps, prompts_per_step=prompts_per_step, samples_per_prompt=samples_per_prompt, window=window),
        seed=seed,
    )
