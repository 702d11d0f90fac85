"""Outcomes of graded samples by training step, and whether a whole step failed to be graded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcrl.data.rewards import FAILED, Grade


class Tally:
    """Counts the outcomes that one reward replica gave.

    Args:
        step_rows: samples of a whole step over all replicas.
        replicas: reward replicas that share a step. Where all samples of a step failed, one of them has had at least its
            even share of these, and none that did not fail.
    """

    def __init__(self, step_rows: int, replicas: int) -> None:
        self._step_rows, self._replicas = step_rows, replicas
        self._steps: dict[int, Counter[str]] = {}

    def add(self, step: int, grades: Sequence[Grade]) -> dict[str, int]:
        """Count the grades of one block and return that block's counts, every outcome among them."""
        counts = Counter(grade.outcome.name.lower() for grade in grades)
        self._steps.setdefault(step, Counter()).update(counts)
        return dict(counts)

    def failed_step(self, *, ended: bool = False) -> int | None:
        """A step of which a full share was graded and nothing but timeouts and exceptions came, else None.

        Steps that are known to be well are forgotten.

        Args:
            ended: no more samples will come, so a lone replica's last step may be short of its share.
        """
        share = 1 if ended and self._replicas == 1 else -(-self._step_rows // self._replicas)
        failed = {outcome.name.lower() for outcome in FAILED}
        for step, counts in list(self._steps.items()):
            total = counts.total()
            if total < share:
                continue
            if sum(counts[name] for name in failed) == total:
                return step
            if total >= self._step_rows:
                del self._steps[step]
        return None
