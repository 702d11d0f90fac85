"""A step trained in parts, each as soon as its rows are there. Imported only in a process that trains.

The step is one all the same: its rows are marked as trained, and a save may be made, only once all of it is. Where the role is
asked to stop in between, the trainer goes back to where the step began, so that no save holds a part of one and no row of it
is trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hpcrl.engines.titan.figures import joined
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.run.failpoints import reach

G = TypeVar("G")


class Parts(Generic[G]):
    """The leading rank's parts of the step under way.

    Args:
        say: tells the other ranks, who do the same: "hold", "part", "whole" or "roll back".

    Attributes:
        groups: of the parts trained so far.
    """

    def __init__(self, engine: TitanTrainer, say: Callable[[str], None]) -> None:
        self._engine, self._say = engine, say
        self.groups: list[G] = []
        self._samples: list[Sample] = []
        self._figures: list[dict[str, float]] = []

    def train(self, groups: Sequence[G], samples: Sequence[Sample]) -> None:
        """One optimizer step on whole groups; errors as of :meth:`~hpcrl.engines.titan.trainer.TitanTrainer.train_part`."""
        if not self.groups:
            self._say("hold")
            self._engine.hold()
        # From here on the weights are of no whole step, even if this fails.
        self.groups += groups
        self._samples += samples
        self._say("part")
        self._figures.append(self._engine.train_part(samples))
        reach("batch.part")

    def end(self) -> dict[str, float]:
        """The step is whole; its figures."""
        self._say("whole")
        self._engine.end_parts()
        return joined(self._figures)

    def taken(self) -> tuple[list[G], list[Sample]]:
        """Groups and samples of the step that ended; from here on the next one's are collected."""
        groups, samples = self.groups, self._samples
        self._forget()
        return groups, samples

    def give_up(self) -> None:
        """Go back to where the step began, if a part of it was trained."""
        if self.groups:
            self._say("roll back")
            self._engine.roll_back()
            self._forget()

    def _forget(self) -> None:
        self.groups, self._samples, self._figures = [], [], []
