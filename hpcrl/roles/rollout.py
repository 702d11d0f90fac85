"""Rollout: prompts go to the engines, their answers into the queue, as far ahead of training as the pacing window lets it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.data.cursor import PromptOrder
from hpcrl.data.dataset import Dataset
from hpcrl.data.models import context_length, resolve_model
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import Recipe, Role, Writes
from hpcrl.roles.feedback import SERVED
from hpcrl.roles.samples import CREATED_NAMES, SAMPLES
from hpcrl.run.errors import CheckFailed, Stopped

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Rollout(Role):
    """Makes ``samples_per_prompt`` responses to each prompt of the schedule.

    Attributes:
        model: whose tokenizer and chat template encode the prompts.
        dataset: where the prompts come from.
        sampling: how responses are sampled.
        inference: group of the engines.
        shuffle: permute the prompts anew each epoch, seeded by the recipe's seed.
        epochs: passes over the dataset after which the prompts end even if the schedule has steps left; the last batch
            then holds what is left. None goes on for as long as the schedule.
        concurrency: requests under way at a time when the window is not lock-step.
        settle_s: in lock-step, how long a batch waits for the slower engines to load the weights [s].
    """

    model: str
    dataset: Dataset
    sampling: Sampling
    inference: str = "inference"
    shuffle: bool = True
    epochs: int | None = None
    concurrency: int = 64
    settle_s: float = 30.0
    stream: str = SAMPLES

    def writes(self) -> tuple[Writes, ...]:
        """New rows, all but reward and outcome."""
        return (Writes(stream=self.stream, columns=CREATED_NAMES, creates=True),)

    def listens(self) -> tuple[str, ...]:
        """Which engine serves which version."""
        return (SERVED,)

    def check(self, recipe: Recipe) -> list[str]:
        """Settings make sense, the model is there, and every prompt with its response fits the context."""
        from hpcrl.roles.prompt_check import prompt_problems

        problems = sampling_problems(self.sampling)
        if self.inference not in recipe.groups:
            problems.append(f"rollout names inference group {self.inference!r}; the recipe has {sorted(recipe.groups)}")
        for name in ("concurrency", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"rollout {name} is {value}, it must be at least 1")
        try:
            model = resolve_model(self.model)
            context = self._context(recipe, context_length(model))
        except CheckFailed as failed:
            return problems + list(failed.problems)
        return problems + prompt_problems(self.dataset, model, max_new_tokens=self.sampling.max_new_tokens, context=context)

    def prepare(self, *, gpus: bool) -> None:
        """What makes prompts and asks engines."""
        import hpcrl.data.tokenizer
        import hpcrl.roles.generation
        import hpcrl.roles.producer
        import hpcrl.roles.prompting  # noqa: F401

    def run(self, context: RoleContext) -> None:
        """Produce every prompt of the schedule that is neither in the queue nor in the trainer's newest save, then close it."""
        from hpcrl.data.tokenizer import open_encoder
        from hpcrl.roles.generation import HttpGenerate
        from hpcrl.roles.producer import Producer
        from hpcrl.roles.prompting import PromptSource

        context.phase("start")
        recipe = context.recipe
        # What an earlier life of this process, or a snapshot, has put already. Asked for first: a prompt that is trained
        # meanwhile is then in both.
        held = context.queue.held(self.stream)
        prompts = self.dataset.open()
        order = PromptOrder(len(prompts), recipe.seed, self.shuffle)
        source = PromptSource(prompts, order, open_encoder(resolve_model(self.model)))
        # By then the trainer has found a save whole, and one that it did not counts no longer.
        context.wait_feedback(SERVED, lambda newest: True if newest else None, "an engine that serves")
        cursor = read_cursor(context.attempt.run.state)
        with HttpGenerate(context, self.sampling) as generate:
            producer = Producer(
                context,
                source,
                generate,
                stream=self.stream,
                engines=recipe.groups[self.inference].replicas,
                concurrency=self.concurrency,
                settle_s=self.settle_s,
            )
            try:
                producer.run(cursor.prompts, self.total_prompts(recipe, len(prompts)), done=cursor.beyond | held)
            except Stopped:
                # The stream is not at its end: a trainer that heard of the stop later would take it for the last step's.
                log.info("asked to stop; prompts without an answer are asked again when the run goes on")
                raise
        context.queue.close_stream(self.stream)

    def total_prompts(self, recipe: Recipe, size: int) -> int:
        """How many prompts the run has, given the dataset's size."""
        scheduled = recipe.schedule.steps * recipe.schedule.prompts_per_step
        return scheduled if self.epochs is None else min(scheduled, self.epochs * size)

    def _context(self, recipe: Recipe, model_context: int | None) -> int | None:
        """The shorter of the model's context and the engines' own limit, where they have one."""
        group = recipe.groups.get(self.inference)
        limits = [limit for limit in (model_context, getattr(group and group.role, "max_context", None)) if limit]
        return min(limits, default=None)


def sampling_problems(sampling: Sampling) -> list[str]:
    """Every sampling setting that makes no sense for training, a sentence each."""
    rules = (
        (sampling.max_new_tokens >= 1, "max_new_tokens", "at least 1"),
        (0 < sampling.temperature < float("inf"), "temperature", "above 0: the samples of a prompt must differ"),
        (0 < sampling.top_p <= 1, "top_p", "in (0, 1]"),
        (sampling.top_k == -1 or sampling.top_k >= 1, "top_k", "-1 (off) or at least 1"),
        (0 <= sampling.min_p < 1, "min_p", "in [0, 1)"),
    )
    return [f"sampling {name} is {getattr(sampling, name)}; it must be {must}" for fine, name, must in rules if not fine]
