"""Learning rate as a pure function of the step, so that a resumed run needs only the step."""

from __future__ import annotations

import math

from hpcrl.engines.titan.settings import TrainerSettings


def learning_rate(step: int, settings: TrainerSettings) -> float:
    """Learning rate of step ``step`` (the first is 0).

    Warm-up rises linearly and reaches ``lr`` at step ``warmup_steps``; decay reaches 0 at ``total_steps``, which is never
    trained, so the last step still learns.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    if settings.lr_schedule == "constant" or settings.total_steps is None:
        return settings.lr
    done = min(1.0, (step - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps))
    if settings.lr_schedule == "linear":
        return settings.lr * (1 - done)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
