"""An alarm where training and generation disagree about the log-probabilities of the same tokens. Pure.

Generation computes with other kernels, batch shapes and rounding than training, so that some disagreement is normal: a mean of
0.001 to 0.03 nats where both compute in bfloat16, more where tokens are older than the weights. Far beyond that, one of them
computes something else, and the importance weight exp(trainer - rollout) of the loss means nothing.
"""

from __future__ import annotations

import math

from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.run.errors import HpcrlError

_CAUSES = (
    "an engine that holds other weights than the version it names, or half of an update (compare `hash` of its `served` "
    "records with the trainer's); a sampling temperature that is not the trainer's; top_p, top_k or min_p, by which the "
    "engine renormalises; another tokenizer or chat template; a dtype, quantisation or attention kernel of the engine; stale "
    "tokens (`version_lag_mean`)"
)


class PolicyMismatch(HpcrlError):
    """Trainer and rollout have disagreed too much for too long."""


class GapAlarm:
    """Watches ``logprob_gap_mean`` from step to step."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._beyond = 0

    def see(self, step: int, mean: float, highest: float) -> str:
        """Take in a step; what to warn of, empty if nothing.

        Args:
            mean, highest: |trainer - rollout| log-probability over the step's tokens [nats].

        Raises:
            PolicyMismatch: it was beyond ``gap_stop`` for ``gap_steps`` steps in a row.
        """
        settings = self._settings
        far = settings.gap_stop is not None and not mean <= settings.gap_stop
        self._beyond = self._beyond + 1 if far else 0
        told = f"step {step}: log-probabilities of trainer and rollout differ by {mean:.3g} nats, {highest:.3g} at most"
        if self._beyond >= settings.gap_steps:
            raise PolicyMismatch(
                f"{told}, above gap_stop {settings.gap_stop:g} for {self._beyond} steps in a row. Likely causes: {_CAUSES}. "
                "Set gap_stop higher, or to none, if it is meant to be so"
            )
        if far:
            return f"{told}; the run ends after {settings.gap_steps - self._beyond} more such steps. Likely causes: {_CAUSES}"
        if settings.gap_warn is not None and (mean > settings.gap_warn or math.isnan(mean)):
            return f"{told}, above gap_warn {settings.gap_warn:g}"
        return ""
