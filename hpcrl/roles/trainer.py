"""Trainer: takes the rows of each step, learns from them, publishes the next policy version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hpcrl.data.models import model_problems, resolve_model
from hpcrl.dataplane.trajectories.layout import TAKEN
from hpcrl.engines.completion import Sampling
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.recipe import Reads, Recipe, Role
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.roles.inference import Inference
from hpcrl.roles.longest import longest_sample
from hpcrl.roles.samples import SAMPLES, TRAINED_NAMES
from hpcrl.roles.turns import Turns, token_ring
from hpcrl.run.errors import CheckFailed

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

# Of a kept answer: the token's id, its log-probability, its policy version, and about as much text.
_TOKEN_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Trainer(TrainerSettings, Role):
    """Trains the policy with GRPO on torchtitan. Its settings are the engine's and these.

    Attributes:
        stream_minibatches: without a pacing window, each of a step's ``minibatches`` is trained as soon as its prompts are
            there rather than once those of the whole step are; see :mod:`hpcrl.roles.parts`. Each is normalised by itself, as
            always: with "token" its loss is the sum over its tokens divided by their number. The proximal policy is the one
            that a mini-batch finds, so that clipping holds nothing back; ``importance_cap`` does. Costs a copy of the state in
            the host's memory.
        divide_by_std: advantages in units of their group's standard deviation (GRPO), or as they are (Dr. GRPO).
        save_every: steps between saves of the whole trainer state; the end is always saved. 0 saves only that.
        keep_weights: newest published policy versions that stay; older ones stay while an engine serves none newer, and while
            one that stays is a patch on them.
        base_every: policy versions from one that is published whole to the next, at most; those between are published as what
            has changed.
        trajectories: samples of each step that are kept for ``hpcrl trajectories``, whole prompts first: two groups of eight
            show what is going on, and 1000 steps of them with 1000 tokens each take 0.3 GB. 0 = none, -1 = all.
    """

    world: ClassVar[bool] = True
    process_per_gpu: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True

    stream_minibatches: bool = False
    divide_by_std: bool = True
    save_every: int = 0
    keep_weights: int = 2
    base_every: int = 32
    trajectories: int = 16

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read of each sample: what is trained on, and what is kept of it."""
        return tuple(dict.fromkeys((*TRAINED_NAMES, *(TAKEN if self.trajectories else ()))))

    def reads(self) -> tuple[Reads, ...]:
        """Graded samples; the trainer is their end."""
        return (Reads(stream=SAMPLES, columns=self.columns, final=True),)

    def listens(self) -> tuple[str, ...]:
        """What engines serve, to know which published versions may go."""
        return (SERVED,)

    def announces(self) -> tuple[str, ...]:
        """Each new policy version."""
        return (POLICY,)

    def check(self, recipe: Recipe) -> list[str]:
        """Values in range; the model is there, of a family that the trainer knows, its vocabulary the tokenizer's."""
        from hpcrl.engines.titan.shape import ModelError, read_shape

        wrong = self.problems()
        if self.save_every < 0 or self.keep_weights < 1 or self.base_every < 1:
            wrong.append(
                f"save_every {self.save_every} must not be negative, keep_weights {self.keep_weights} and base_every "
                f"{self.base_every} at least 1"
            )
        if self.trajectories < -1:
            wrong.append(f"trajectories is {self.trajectories}; it is a number of samples, 0 for none, or -1 for all")
        wrong += self._stream_problems(recipe)
        wrong += [
            f"group {name} runs in {group.role.dtype} and the trainer publishes in {self.publish_dtype}; make them the same"
            for name, group in recipe.groups.items()
            if isinstance(group.role, Inference) and group.role.dtype != self.publish_dtype
        ]
        try:
            path = resolve_model(self.model)
        except CheckFailed as failed:
            return wrong + list(failed.problems)
        try:
            context = read_shape(path, context=self.context).context
            if (longest := longest_sample(recipe)) > context:
                wrong.append(
                    f"engines make samples of up to {longest} tokens (max_context), and the trainer takes {context}; lower the "
                    "one or raise the other"
                )
        except ModelError as error:
            wrong.append(str(error))
        return wrong + model_problems(path)

    def disk_bytes(self, recipe: Recipe) -> int:
        """Published versions, saves of the weights and both Adam moments in float32, and trajectories."""
        try:
            weights = sum(file.stat().st_size for file in resolve_model(self.model).glob("*.safetensors"))
        except CheckFailed:
            return 0
        # Patches on a base are together no larger than one and a half; what stays lies on so many bases, and one more comes.
        bases = min(self.keep_weights // self.base_every + 2, self.keep_weights) + 1
        states = self.keep_states + self.keep_best_states + 1
        if self.keep_states_every:
            states += recipe.schedule.steps // self.keep_states_every
        # A model on disk has at least two bytes a value, so six times its size bounds three float32 copies.
        return (bases * 5 // 2 + states * 6) * weights + self._trajectories_bytes(recipe)

    def _stream_problems(self, recipe: Recipe) -> list[str]:
        if not self.stream_minibatches:
            return []
        schedule, wrong = recipe.schedule, []
        if schedule.window is not None:
            wrong.append(f"stream_minibatches goes without a pacing window, and the schedule has window {schedule.window}")
        if not 2 <= self.minibatches <= schedule.prompts_per_step:
            wrong.append(
                f"stream_minibatches needs from 2 minibatches to one for each of the {schedule.prompts_per_step} prompts of a "
                f"step, not {self.minibatches}"
            )
        rings = (token_ring(recipe, name) for name, group in recipe.groups.items() if group.role is self)
        wrong += [
            f"stream_minibatches trains while the rest of a step is generated, and in ring {ring.name} only one of both has "
            "the GPUs; leave it out, or give the trainer GPUs of its own"
            for ring in rings
            if ring is not None
        ]
        return wrong

    def _trajectories_bytes(self, recipe: Recipe) -> int:
        """Of answers as long as they may become."""
        schedule = recipe.schedule
        every = schedule.prompts_per_step * schedule.samples_per_prompt
        samples = every if self.trajectories < 0 else min(self.trajectories, every)
        sampled = (getattr(group.role, "sampling", None) for group in recipe.groups.values())
        longest = max((sampling.max_new_tokens for sampling in sampled if isinstance(sampling, Sampling)), default=0)
        return schedule.steps * samples * longest * _TOKEN_BYTES

    def prepare(self, *, gpus: bool) -> None:
        """torchtitan and the trainer's loop."""
        import hpcrl.roles.training
        from hpcrl.engines.titan import compat

        compat.enable("cuda" if gpus else "cpu")
        import hpcrl.engines.titan.build
        import hpcrl.engines.titan.model  # noqa: F401

    def run(self, context: RoleContext) -> None:
        """Train ``schedule.steps`` steps, or until the stream ends or the role is stopped."""
        from hpcrl.engines.titan.trainer import TitanTrainer
        from hpcrl.roles.training import Follower, Leader

        turns = Turns(context)
        turns.take(step=0)
        context.phase("load")
        settings = replace(self, model=str(resolve_model(self.model)))
        engine = TitanTrainer(settings, context.identity, context.attempt.run.state)
        turns.memory = engine.memory
        try:
            (Leader if context.identity.rank == 0 else Follower)(settings, context, engine, turns).run()
        finally:
            engine.close()
