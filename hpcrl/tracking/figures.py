"""Journal records into figures: one row for each training step, and what every process was last seen at. Pure.

Records may come in any order between writers and with any field missing: what is not there is simply left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcrl.tracking.handovers import Handovers

OUTCOMES = ("right", "wrong", "unparseable", "timeout", "exception")
# Where a step's seconds went; what step_s holds beyond these is shown as the rest.
TIME_PARTS = ("wait_s", "turn_s", "train_s", "publish_s")


@dataclass(frozen=True)
class StepFigures:
    """One training step.

    Attributes:
        t: Unix time [s] of the record.
        values: every finite number of the record and what follows from them: ``tokens_per_s`` (trained tokens over
            step_s) and ``version_lag`` (mean over the samples).
        outcomes: rewards by outcome, summed over the reward replicas; empty if none was reported.
    """

    step: int
    attempt: int
    t: float
    values: Mapping[str, float]
    outcomes: Mapping[str, int] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        """The figure of that name, or None."""
        return self.values.get(name)

    @property
    def split(self) -> dict[str, float]:
        """Seconds of the step by part, with what no part accounts for as ``rest``; empty without step_s."""
        total = self.get("step_s")
        if total is None or total <= 0:
            return {}
        parts = {name.removesuffix("_s"): max(0.0, self.values[name]) for name in TIME_PARTS if name in self.values}
        return {**parts, "rest": max(0.0, total - sum(parts.values()))}


@dataclass(frozen=True)
class Phase:
    """What a process last said that it was at."""

    attempt: int
    name: str
    step: int | None
    t: float


@dataclass(frozen=True)
class Served:
    """An engine switched to a policy version."""

    attempt: int
    writer: str
    version: int
    load_s: float | None
    hash: str | None
    t: float


@dataclass(frozen=True)
class Sampled:
    """Sums over everything that the rollout roles reported."""

    prompts: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Figures:
    """Folds records one by one.

    Attributes:
        phases: newest phase of each process.
        served: newest switch of each engine to each version, by (writer, version).
        handovers: of rings' tokens.
        first_t: time of the earliest record seen, None before the first.
        last_t: time of the newest record seen.
    """

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}
        self.served: dict[tuple[str, int], Served] = {}
        self.sampled = Sampled()
        self.handovers = Handovers()
        self.first_t: float | None = None
        self.last_t: float | None = None
        self._steps: dict[int, StepFigures] = {}
        self._outcomes: dict[int, tuple[int, dict[str, int]]] = {}
        self._begins: dict[int, int] = {}
        self._table: list[StepFigures] | None = None

    def add(self, attempt: int, writer: str, record: Mapping[str, Any]) -> None:
        """Take one record of an attempt's journal."""
        self._table = None
        t = number(record.get("t"))
        if t is not None:
            self.first_t = t if self.first_t is None else min(self.first_t, t)
            self.last_t = t if self.last_t is None else max(self.last_t, t)
        kind = record.get("kind")
        step = whole(record.get("step"))
        if kind == "step" and step is not None:
            self._add_step(attempt, step, t or 0.0, record)
        elif kind == "outcomes" and step is not None:
            self._add_outcomes(attempt, step, record)
        elif kind == "phase":
            held = self.phases.get(writer)
            if held is None or (attempt, t or 0.0) >= (held.attempt, held.t):
                self.phases[writer] = Phase(attempt, str(record.get("name", "?")), step, t or 0.0)
        elif kind == "served":
            self._add_served(attempt, writer, t or 0.0, record)
        elif kind == "handover":
            self.handovers.add(attempt, writer, record)
        elif kind == "sampled":
            self.sampled = Sampled(
                prompts=self.sampled.prompts + (whole(record.get("prompts")) or 0),
                samples=self.sampled.samples + (whole(record.get("samples")) or 0),
                tokens=self.sampled.tokens + (whole(record.get("tokens")) or 0),
                seconds=self.sampled.seconds + (number(record.get("seconds")) or 0.0),
            )

    def steps(self) -> list[StepFigures]:
        """Every step that counts, by number: of a step trained in several attempts only the last.

        A later attempt that went on from step s undid the earlier attempts' steps from s on, trained again or not.
        """
        if self._table is None:
            self._table = [
                replace(row, outcomes=dict(self._outcomes.get(step, (0, {}))[1]))
                for step, row in sorted(self._steps.items())
                if not any(attempt > row.attempt and begin <= step for attempt, begin in self._begins.items())
            ]
        return list(self._table)

    def totals(self) -> dict[str, int]:
        """Rewards of all steps that were reported, by outcome."""
        sums: dict[str, int] = defaultdict(int)
        for _, outcomes in self._outcomes.values():
            for name, count in outcomes.items():
                sums[name] += count
        return dict(sums)

    def _add_step(self, attempt: int, step: int, t: float, record: Mapping[str, Any]) -> None:
        self._begins[attempt] = min(step, self._begins.get(attempt, step))
        held = self._steps.get(step)
        if held is not None and held.attempt > attempt:
            return
        values = {
            name: value for name, item in record.items() if name not in ("t", "step") and (value := number(item)) is not None
        }
        self._steps[step] = StepFigures(step, attempt, t, derived(values))

    def _add_outcomes(self, attempt: int, step: int, record: Mapping[str, Any]) -> None:
        held, sums = self._outcomes.get(step, (attempt, {}))
        if attempt < held:
            return
        if attempt > held:
            sums = {}
        for name in OUTCOMES:
            if (count := whole(record.get(name))) is not None:
                sums[name] = sums.get(name, 0) + count
        self._outcomes[step] = (attempt, sums)

    def _add_served(self, attempt: int, writer: str, t: float, record: Mapping[str, Any]) -> None:
        version = whole(record.get("version"))
        if version is None:
            return
        held = self.served.get((writer, version))
        if held is None or (attempt, t) >= (held.attempt, held.t):
            digest = record.get("hash")
            self.served[writer, version] = Served(
                attempt, writer, version, number(record.get("load_s")), None if digest is None else str(digest), t
            )


def derived(values: Mapping[str, float]) -> dict[str, float]:
    """The figures of a step with tokens_per_s and version_lag, where they follow from the others."""
    more = dict(values)
    tokens, seconds = values.get("trained_tokens"), values.get("step_s")
    if "tokens_per_s" not in more and tokens is not None and seconds is not None and seconds > 0:
        more["tokens_per_s"] = tokens / seconds
    if "version_lag" not in more and "version_lag_mean" in values:
        more["version_lag"] = values["version_lag_mean"]
    return more


def moving_mean(values: list[float | None], window: int) -> list[float | None]:
    """Mean over the last ``window`` entries that are there; None until there is one."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        held = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(held) / len(held) if held else None)
    return means


def number(value: Any) -> float | None:
    """A finite number, or None for anything else; booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """A finite number as an integer, or None."""
    held = number(value)
    return None if held is None else int(held)
