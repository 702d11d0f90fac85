"""The trainer's loop. Imported only in a process that trains.

Rank 0 leads: it alone talks to the data plane, and its word before each round (train, save, end) is what all ranks do, so
they save and end at the same step whichever of them heard a signal first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.algorithms.advantage import group_advantages
from hpcrl.algorithms.pacing import lateness
from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.state.restore import Expected
from hpcrl.checkpoint.state.saver import PARTS_S
from hpcrl.dataplane.interface import Batch, EndOfStream
from hpcrl.dataplane.trajectories.keeper import Keeper
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.roles.collect import StepCollector
from hpcrl.roles.context import RoleContext
from hpcrl.roles.identity import recipe_identity
from hpcrl.roles.publishing import Publishing
from hpcrl.roles.samples import SAMPLES, TRAINED_NAMES
from hpcrl.roles.saving import Saves
from hpcrl.run.errors import HpcrlError, RoleFailed, Stopped

if TYPE_CHECKING:
    from hpcrl.roles.trainer import Trainer

log = logging.getLogger(__name__)


# What rank 0 says next, by its number.
_WORDS = ("end", "train", "publish", "save")
# What only disturbed it, such as the death of a process, does not come again.
_LAST_TRIES = 2
# What a save waits at most for the trajectories of its steps to be durable; mostly they are by then.
_KEEP_S = 10.0


class Follower:
    """A rank that does what rank 0 says."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
        self._settings, self._context, self._engine = settings, context, engine

    def run(self) -> None:
        """Until rank 0 says end. Stop flags are rank 0's to hear."""
        engine, context = self._engine, self._context
        with closing(Publishing(self._settings, context, engine)) as publishing:
            engine.load_state(context.attempt.run.state)
            while (word := _WORDS[engine.say(0)]) != "end":
                context.phase(word, step=engine.step + (word == "train"))
                if word == "train":
                    engine.train_batch(None)
                elif word == "publish":
                    publishing.publish()
                elif word == "save":
                    engine.begin_save(context.attempt.run.state, None)


class Leader:
    """Rank 0."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
        self._settings, self._context, self._engine = settings, context, engine
        schedule, limits = context.recipe.schedule, context.recipe.limits
        self._rows = schedule.prompts_per_step * context.recipe.stream(SAMPLES).block_rows
        self._lateness = lateness(window=schedule.window, version_lag=limits.version_lag)
        self._saves: Saves | None = None
        self._keeper: Keeper | None = None
        # A save is due and could not begin yet.
        self._owed = False
        self._publishing = Publishing(settings, context, engine)

    def run(self) -> None:
        """All steps, then a save; the save too when stopped. The other ranks are always told to end."""
        try:
            self._train()
        except Stopped as stopped:
            log.info("%s; saving step %d", stopped, self._engine.step)
            self._save_last(seconds=self._context.recipe.limits.drain_s)
            raise
        except BaseException:
            if self._saves is not None:
                # What it holds need not be trained again.
                with suppress(HpcrlError):
                    self._saves.finish(seconds=self._context.recipe.limits.drain_s / 2)
            raise
        finally:
            self._say("end")
            self._publishing.close()
            if self._keeper is not None:
                self._keeper.close()

    def _train(self) -> None:
        context, engine, schedule = self._context, self._engine, self._context.recipe.schedule
        identity = recipe_identity(context.recipe)
        saved = engine.load_state(context.attempt.run.state, Expected(attempt=context.attempt.number, identity=identity))
        self._cursor = cursor = Cursor() if saved is None else Cursor.from_record(saved.cursor)
        if saved is not None:
            log.info("going on from step %d, save %s", saved.step, saved.name)
        if cursor.step > schedule.steps:
            log.warning("the save is of step %d, beyond the %d steps of the schedule", cursor.step, schedule.steps)
        self._saves = Saves(context, engine, identity, step=-1 if saved is None else saved.step)
        self._keeper = Keeper(context.attempt, after=engine.step, samples=self._settings.trajectories)
        self._collector: StepCollector[Batch] = StepCollector(
            schedule.prompts_per_step, first_prompt=cursor.prompts, taken=cursor.beyond, lateness=self._lateness
        )
        self._publish()
        while engine.step < schedule.steps:
            context.raise_if_stopped()
            started = time.monotonic()
            groups = self._collect(engine.step)
            if not groups:
                log.info("the stream ended after %d steps", engine.step)
                self._publish(last=True)
                break
            waited = time.monotonic() - started
            # Training would make it one of another step.
            self._tend_saves(now=True)
            # To begin a save may have taken long; what was collected is collected again.
            context.raise_if_stopped()
            self._step(groups, started, waited)
            self._tend_saves(due=self._is_due())
        self._save_last(seconds=PARTS_S)

    def _is_due(self) -> bool:
        return bool(self._settings.save_every) and self._engine.step % self._settings.save_every == 0

    def _tend_saves(self, *, due: bool = False, now: bool = False) -> None:
        """Hear of the save that is being made, and begin the next if it is due and can be. Cheap while nothing happens.

        Args:
            now: begin it even if it must wait for what is kept of its steps to be durable.
        """
        assert self._saves is not None
        assert self._keeper is not None
        self._saves.heed()
        self._owed |= due
        wanted = (self._owed and not self._saves.under_way) or self._saves.is_urgent
        if wanted and (now or self._keeper.settled()):
            self._begin_save()

    def _begin_save(self) -> None:
        assert self._saves is not None
        assert self._keeper is not None
        self._owed = False
        # A run goes on behind a committed save, so that what came before it is kept then or never.
        self._keeper.settle(_KEEP_S)
        self._say("save")
        self._saves.begin(self._cursor)

    def _save_last(self, *, seconds: float) -> None:
        """Until the step that the weights are at is saved, within so long.

        Raises:
            RoleFailed: it could not be.
        """
        until, saves, context = time.monotonic() + seconds, self._saves, self._context
        assert saves is not None
        error = saves.finish(seconds=seconds)
        for _ in range(_LAST_TRIES):
            if saves.committed == self._engine.step or saves.under_way:
                break
            self._begin_save()
            error = saves.finish(seconds=max(0.0, until - time.monotonic()))
        if saves.committed != self._engine.step:
            raise RoleFailed(
                f"{context.identity.name}: {error}",
                read=context.attempt.log(context.identity.name),
                do="the saves before it are whole, and the run can go on from the newest of them",
            )

    def _say(self, word: str) -> None:
        self._engine.say(_WORDS.index(word))

    def _collect(self, step: int) -> list[Batch]:
        """The prompt groups of a step; fewer, or none, once the stream has ended."""
        context, ended = self._context, False
        context.phase("collect", step=step + 1)
        while (groups := self._collector.take(step, ended=ended)) is None:
            try:
                batch = context.read(SAMPLES, self._settings.columns, max_rows=self._rows, meanwhile=self._tend_saves)
            except EndOfStream:
                ended = True
                continue
            for block in batch.split():
                try:
                    self._collector.add(int(np.asarray(block.columns["prompt_number"])[0]), block)
                except ValueError as error:
                    raise RoleFailed(
                        f"{context.identity.name}: {error}; each prompt is trained once",
                        read=context.attempt.log("rollout.0"),
                        do="this is a fault of the rollout role",
                    ) from error
        return groups

    def _step(self, groups: Sequence[Batch], started: float, waited: float) -> None:
        context, engine = self._context, self._engine
        step = engine.step
        context.phase("train", step=step + 1)
        rows = _joined(groups)
        self._say("train")
        samples = _samples(rows, divide_by_std=self._settings.divide_by_std)
        figures = engine.train_batch(samples)
        # What is saved once the next step has taken its prompts is still of this one.
        self._cursor = Cursor(step=engine.step, prompts=self._collector.taken_below, beyond=self._collector.taken_beyond)
        # Before anything that a stop may end: a save holds what was trained, and must know of its rows.
        blocks = [block for group in groups for block in group.blocks]
        context.queue.trained(Batch(SAMPLES, {}, tuple(blocks)), engine.step)
        summary = _summary(rows, step)
        assert self._saves is not None
        self._saves.trained(blocks, {**summary, **figures})
        assert self._keeper is not None
        self._keeper.keep(engine.step, groups, [sample.advantage for sample in samples])
        if self._is_due():
            self._keeper.begin()
        trained = time.monotonic()
        version = self._publish()
        published = time.monotonic()
        context.journal.write(
            "step",
            step=engine.step,
            version=engine.step,
            prompts=[int(np.asarray(group.columns["prompt_number"])[0]) for group in groups],
            **summary,
            **figures,
            queue_rows=context.queue.depth(SAMPLES).untrained,
            wait_s=waited,
            publish_s=published - trained,
            publish_bytes=version.size,
            step_s=time.monotonic() - started,
        )

    def _publish(self, *, last: bool = False) -> Version:
        """Publish the weights of now, and for good if they are the last."""
        context, engine = self._context, self._engine
        context.phase("publish", step=engine.step)
        self._say("publish")
        return self._publishing.publish(last=last or engine.step == context.recipe.schedule.steps)


def _joined(groups: Sequence[Batch]) -> dict[str, list[Any]]:
    return {name: [value for group in groups for value in group.columns[name]] for name in TRAINED_NAMES}


def _samples(rows: Mapping[str, list[Any]], *, divide_by_std: bool) -> list[Sample]:
    advantages = group_advantages(np.array(rows["reward"]), np.array(rows["prompt_number"]), divide_by_std=divide_by_std).values
    return [
        Sample(prompt_ids=prompt, response_ids=response, behaviour_logprobs=logprobs, advantage=float(advantage), group=int(n))
        for prompt, response, logprobs, advantage, n in zip(
            rows["prompt_ids"], rows["response_ids"], rows["rollout_logprobs"], advantages, rows["prompt_number"], strict=True
        )
    ]


def _summary(rows: Mapping[str, list[Any]], step: int) -> dict[str, float]:
    rewards = np.array(rows["reward"])
    lengths = np.array([len(ids) for ids in rows["response_ids"]])
    lags = step - np.concatenate(rows["versions"])
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "response_tokens": float(lengths.mean()),
        "version_lag_mean": float(lags.mean()),
        "version_lag_max": int(lags.max()),
    }
