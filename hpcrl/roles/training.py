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
from hpcrl.engines.titan.mismatch import GapAlarm
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.roles.collect import StepCollector
from hpcrl.roles.context import RoleContext
from hpcrl.roles.identity import recipe_identity
from hpcrl.roles.longest import longest_sample
from hpcrl.roles.parts import Parts
from hpcrl.roles.publishing import Publishing
from hpcrl.roles.samples import SAMPLES, TRAINED_NAMES
from hpcrl.roles.saving import Saves
from hpcrl.roles.turns import Turns
from hpcrl.run.errors import HpcrlError, RoleFailed, Stopped

if TYPE_CHECKING:
    from hpcrl.roles.trainer import Trainer

log = logging.getLogger(__name__)


# What rank 0 says next, by its number.
_WORDS = ("end", "train", "publish", "save", "hold", "part", "whole", "roll back", "turn", "hand on")
_TRAINS = ("train", "part")
# What only disturbed it, such as the death of a process, does not come again.
_LAST_TRIES = 2
# What a save waits at most for the trajectories of its steps to be durable; mostly they are by then.
_KEEP_S = 10.0


class Follower:
    """A rank that does what rank 0 says."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer, turns: Turns) -> None:
        self._settings, self._context, self._engine, self._turns = settings, context, engine, turns

    def run(self) -> None:
        """Until rank 0 says end. Stop flags are rank 0's to hear."""
        engine, context = self._engine, self._context
        with closing(Publishing(self._settings, context, engine)) as publishing:
            engine.load_state(context.attempt.run.state)
            _try_longest(self._settings, context, engine)
            while (word := _WORDS[engine.say(0)]) != "end":
                context.phase(word, step=engine.step + (word in _TRAINS))
                if word == "turn":
                    self._turns.take(engine.step + 1)
                    self._turns.ready()
                elif word == "hand on":
                    self._turns.hand_on()
                elif word == "train":
                    engine.train_batch(None)
                elif word == "part":
                    engine.train_part(None)
                elif word == "whole":
                    engine.end_parts()
                elif word == "hold":
                    engine.hold()
                elif word == "roll back":
                    engine.roll_back()
                elif word == "publish":
                    publishing.publish()
                elif word == "save":
                    engine.begin_save(context.attempt.run.state, None)


class Leader:
    """Rank 0."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer, turns: Turns) -> None:
        self._settings, self._context, self._engine, self._turns = settings, context, engine, turns
        # Of the step under way, waited for the GPUs and to let go of them.
        self._turn_s = 0.0
        schedule, limits = context.recipe.schedule, context.recipe.limits
        self._rows = schedule.prompts_per_step * context.recipe.stream(SAMPLES).block_rows
        self._lateness = lateness(window=schedule.window, version_lag=limits.version_lag)
        self._saves: Saves | None = None
        self._keeper: Keeper | None = None
        # A save is due and could not begin yet.
        self._owed = False
        self._parts: Parts[Batch] = Parts(engine, self._say)
        self._alarm = GapAlarm(settings)
        self._publishing = Publishing(settings, context, engine)

    def run(self) -> None:
        """All steps, then a save; the save too when stopped. The other ranks are always told to end."""
        try:
            self._train()
        except Stopped as stopped:
            log.info("%s; saving step %d", stopped, self._engine.step)
            self._parts.give_up()
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
        _try_longest(self._settings, context, engine)
        self._publish()
        self._hand_on()
        while engine.step < schedule.steps:
            context.raise_if_stopped()
            if not self._step():
                log.info("the stream ended after %d steps", engine.step)
                self._take_turn()
                self._publish(last=True)
                self._hand_on()
                break
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
        if self._parts.groups:
            # The weights are of no whole step.
            return
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

    def _collect(self, step: int, part: int = 0, parts: int = 1) -> list[Batch]:
        """The prompt groups of a step, or of a part of it; fewer, or none, once the stream has ended."""
        context, ended = self._context, False
        context.phase("collect", step=step + 1)
        while (groups := self._collector.take(step, ended=ended, part=part, parts=parts)) is None:
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

    def _step(self) -> bool:
        """Train one step and publish what it made; False if the stream has ended."""
        begun = time.monotonic()
        if self._settings.stream_minibatches:
            return self._step_in_parts(begun)
        groups = self._collect(self._engine.step)
        if not groups:
            return False
        waited = time.monotonic() - begun
        samples = self._about_to_train(groups)
        self._say("train")
        self._close_step(groups, samples, self._engine.train_batch(samples), begun, waited)
        return True

    def _step_in_parts(self, begun: float) -> bool:
        parts, count, waited = self._parts, self._settings.minibatches, 0.0
        for number in range(count):
            # To go back takes less of the time that a stop leaves than further parts would.
            self._context.raise_if_stopped()
            since = time.monotonic()
            groups = self._collect(self._engine.step, number, count)
            waited += time.monotonic() - since
            if not groups:
                break
            parts.train(groups, self._about_to_train(groups))
        if not parts.groups:
            return False
        figures = parts.end()
        self._close_step(*parts.taken(), figures, begun, waited)
        return True

    def _about_to_train(self, groups: Sequence[Batch]) -> list[Sample]:
        # Training would make a save one of another step.
        self._tend_saves(now=True)
        # To begin one may have taken long; what was collected is collected again.
        self._context.raise_if_stopped()
        self._take_turn()
        self._context.phase("train", step=self._engine.step + 1)
        return _samples(_joined(groups), divide_by_std=self._settings.divide_by_std)

    def _close_step(
        self, groups: Sequence[Batch], samples: Sequence[Sample], figures: Mapping[str, float], started: float, waited: float
    ) -> None:
        context, engine = self._context, self._engine
        step, rows = engine.step - 1, _joined(groups)
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
        self._hand_on()
        turn_s, self._turn_s = self._turn_s, 0.0
        context.journal.write(
            "step",
            step=engine.step,
            version=engine.step,
            prompts=[int(np.asarray(group.columns["prompt_number"])[0]) for group in groups],
            **summary,
            **figures,
            version_lags=_lag_counts(rows, step),
            queue_rows=context.queue.depth(SAMPLES).untrained,
            wait_s=waited,
            **({"turn_s": turn_s} if self._turns.active else {}),
            publish_s=published - trained,
            publish_bytes=version.size,
            step_s=time.monotonic() - started,
        )
        if warning := self._alarm.see(engine.step, figures["logprob_gap_mean"], figures["logprob_gap_max"]):
            log.warning("%s", warning)

    def _take_turn(self) -> None:
        """Have the GPUs, on all ranks. Rank 0 alone waits for them, so that it alone may have to end while it does."""
        if self._turns.active:
            began = time.monotonic()
            self._turns.take(self._engine.step + 1)
            self._say("turn")
            self._turns.ready()
            self._turn_s += time.monotonic() - began

    def _hand_on(self) -> None:
        if self._turns.active:
            began = time.monotonic()
            self._say("hand on")
            self._turns.hand_on(self._publishing.announced)
            self._turn_s += time.monotonic() - began

    def _publish(self, *, last: bool = False) -> Version:
        """Publish the weights of now, and for good if they are the last."""
        context, engine = self._context, self._engine
        context.phase("publish", step=engine.step)
        self._say("publish")
        return self._publishing.publish(last=last or engine.step == context.recipe.schedule.steps)


def _try_longest(settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
    """Find out before anything is generated whether a GPU's memory holds the longest samples. All ranks do it together."""
    wanted = bool(context.identity.gpus) if settings.preflight is None else settings.preflight
    if not wanted:
        return
    context.phase("preflight", step=engine.step)
    longest = longest_sample(context.recipe)
    found = engine.preflight(longest)
    log.info("preflight: %d tokens, samples of %d, in %.1f s", found["tokens"], longest, found["seconds"])
    context.journal.write("preflight", longest=longest, **found)


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


def _lag_counts(rows: Mapping[str, list[Any]], step: int) -> dict[str, int]:
    """How many tokens each version lag has."""
    lags, counts = np.unique(step - np.concatenate(rows["versions"]), return_counts=True)
    return {str(lag): count for lag, count in zip(lags.tolist(), counts.tolist(), strict=True)}


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
