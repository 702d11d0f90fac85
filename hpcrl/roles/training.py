"""The trainer's loop. Imported only in a process that trains.

Rank 0 leads: it alone talks to the data plane, and its word before each round (train, save, end) is what all ranks do, so
they save and end at the same step whichever of them heard a signal first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.algorithms.advantage import group_advantages
from hpcrl.algorithms.pacing import lateness
from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.weights import publish, retain, versions
from hpcrl.dataplane.interface import Batch, Block, EndOfStream
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.roles.collect import StepCollector
from hpcrl.roles.context import RoleContext
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.roles.samples import SAMPLES, TRAINED_NAMES
from hpcrl.run.errors import RoleFailed, Stopped

if TYPE_CHECKING:
    from hpcrl.roles.trainer import Trainer

log = logging.getLogger(__name__)


# What rank 0 says next, by its number.
_WORDS = ("end", "train", "publish", "save")


class Follower:
    """A rank that does what rank 0 says."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
        self._settings, self._context, self._engine = settings, context, engine

    def run(self) -> None:
        """Until rank 0 says end. Stop flags are rank 0's to hear."""
        engine, context = self._engine, self._context
        engine.load_state(context.attempt.run.state)
        while (word := _WORDS[engine.say(0)]) != "end":
            context.phase(word, step=engine.step + (word == "train"))
            if word == "train":
                engine.train_batch(None)
            elif word == "publish":
                engine.hf_state_dict()
            elif word == "save":
                engine.save_state(context.attempt.run.state, {})


class Leader:
    """Rank 0."""

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
        self._settings, self._context, self._engine = settings, context, engine
        schedule, limits = context.recipe.schedule, context.recipe.limits
        self._rows = schedule.prompts_per_step * context.recipe.stream(SAMPLES).block_rows
        self._lateness = lateness(window=schedule.window, version_lag=limits.version_lag)
        self._saved_step = -1
        # Trained since the newest save; they are let go once a save holds what they taught.
        self._unsaved: list[Block] = []
        self._most_unsaved = context.recipe.stream(SAMPLES).capacity_rows

    def run(self) -> None:
        """All steps, then a save; the save too when stopped. The other ranks are always told to end."""
        try:
            self._train()
        except Stopped as stopped:
            log.info("%s; saving step %d", stopped, self._engine.step)
            self._save()
            raise
        finally:
            self._say("end")

    def _train(self) -> None:
        context, engine, schedule = self._context, self._engine, self._context.recipe.schedule
        cursor = Cursor.from_record(engine.load_state(context.attempt.run.state))
        self._collector: StepCollector[Batch] = StepCollector(
            schedule.prompts_per_step, first_prompt=cursor.prompts, taken=cursor.beyond, lateness=self._lateness
        )
        self._saved_step = engine.step if cursor.step else -1
        self._publish()
        while engine.step < schedule.steps:
            context.raise_if_stopped()
            started = time.monotonic()
            groups = self._collect(engine.step)
            if not groups:
                log.info("the stream ended after %d steps", engine.step)
                break
            waited = time.monotonic() - started
            self._step(groups, started, waited)
            if self._is_due():
                self._save()
        self._save()

    def _is_due(self) -> bool:
        every = self._settings.save_every
        # Rows that wait for a save take room on the nodes.
        return (
            bool(every and self._engine.step % every == 0)
            or sum(len(block.row_ids) for block in self._unsaved) >= self._most_unsaved
        )

    def _say(self, word: str) -> None:
        self._engine.say(_WORDS.index(word))

    def _collect(self, step: int) -> list[Batch]:
        """The prompt groups of a step; fewer, or none, once the stream has ended."""
        context, ended = self._context, False
        context.phase("collect", step=step + 1)
        while (groups := self._collector.take(step, ended=ended)) is None:
            try:
                batch = context.read(SAMPLES, TRAINED_NAMES, max_rows=self._rows)
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
        figures = engine.train_batch(_samples(rows, divide_by_std=self._settings.divide_by_std))
        trained = time.monotonic()
        self._publish()
        published = time.monotonic()
        blocks = [block for group in groups for block in group.blocks]
        context.queue.trained(Batch(SAMPLES, {}, tuple(blocks)), engine.step)
        self._unsaved += blocks
        context.journal.write(
            "step",
            step=engine.step,
            version=engine.step,
            prompts=[int(np.asarray(group.columns["prompt_number"])[0]) for group in groups],
            **_summary(rows, step),
            **figures,
            queue_rows=context.queue.depth(SAMPLES).untrained,
            wait_s=waited,
            publish_s=published - trained,
            step_s=time.monotonic() - started,
        )

    def _publish(self) -> None:
        context, engine, folder = self._context, self._engine, self._context.attempt.run.weights
        context.phase("publish", step=engine.step)
        self._say("publish")
        tensors = engine.hf_state_dict()
        # Only the last version outlives the run; any other can be made again from the trainer's state.
        last = engine.step == context.recipe.schedule.steps
        published = publish(folder, engine.step, tensors, Path(self._settings.model), durable=last)
        context.queue.announce(POLICY, {"version": engine.step, "path": str(published.path), "hash": published.hash})
        # An engine may be loading any version newer than the one it serves.
        oldest = min((item.value["version"] for item in context.queue.newest(SERVED).values()), default=0)
        in_use = [version for version in versions(folder) if version >= oldest]
        retain(folder, keep_last=self._settings.keep_weights, protect=in_use)

    def _save(self) -> None:
        context, engine = self._context, self._engine
        if self._saved_step == engine.step:
            return
        context.phase("checkpoint", step=engine.step)
        cursor = Cursor(step=engine.step, prompts=self._collector.taken_below, beyond=self._collector.taken_beyond)
        self._say("save")
        engine.save_state(context.attempt.run.state, cursor.to_record())
        self._saved_step = engine.step
        context.queue.acknowledge(Batch(SAMPLES, {}, tuple(self._unsaved)))
        self._unsaved = []


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
