"""The curves of a run as one picture."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpcrl.tracking.figures import StepFigures, moving_mean

# More steps than this are drawn faint, with their moving mean.
MANY = 60
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, GREEN, ORANGE, RED, VIOLET, TEAL = "#2563eb", "#15803d", "#d97706", "#dc2626", "#7c3aed", "#0f766e"


@dataclass(frozen=True)
class Curve:
    """One small picture: a figure of the steps, and maybe a second one that bounds it."""

    title: str
    figure: str
    color: str
    upper: str = ""
    upper_label: str = ""
    zero: bool = False


CURVES = (
    Curve("loss", "loss", RED),
    Curve("gradient norm", "grad_norm", ORANGE),
    Curve("trained tokens / s", "tokens_per_s", TEAL, zero=True),
    Curve("response length [tokens]", "response_tokens", VIOLET, zero=True),
    Curve("version lag", "version_lag", BLUE, upper="version_lag_max", upper_label="greatest", zero=True),
    Curve("|log-prob gap| trainer - engine", "logprob_gap_mean", GREEN, upper="logprob_gap_max", upper_label="greatest"),
)


def draw(steps: Sequence[StepFigures], title: str) -> bytes:
    """A PNG of reward with its moving mean, and below it loss, gradient norm, tokens/s, length, version lag and log-prob gap.

    Works with no step at all: what is missing is said in its place.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # No pyplot: it keeps global state and would look for a display.
    figure = Figure(
        figsize=(11, 8.2),
        dpi=130,
        facecolor="white",
        layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03),
    )
    FigureCanvasAgg(figure)
    cells = figure.add_gridspec(3, 3, height_ratios=(1.55, 1, 1))
    top = figure.add_subplot(cells[0, :])
    _reward(top, steps, title)
    for index, curve in enumerate(CURVES):
        axes = figure.add_subplot(cells[1 + index // 3, index % 3])
        _small(axes, steps, curve)
        if index >= 3:
            axes.set_xlabel("step", color=FAINT, fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _reward(axes: Any, steps: Sequence[StepFigures], title: str) -> None:
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=12)
    _frame(axes, steps)
    rewards = [step.get("reward") for step in steps]
    x, y = _known(steps, lambda step: step.get("reward"))
    if not x:
        _missing(axes, "no reward yet")
        return
    axes.plot(x, y, color=BLUE, alpha=0.35, linewidth=1, marker="o", markersize=_marker(len(x)), label="mean reward of a step")
    window = smoothing(len(steps))
    if len(x) > 2:
        smooth = moving_mean(rewards, window)
        pairs = [(step.step, value) for step, value in zip(steps, smooth, strict=True) if value is not None]
        axes.plot(*zip(*pairs, strict=True), color=BLUE, linewidth=2.4, label=f"moving mean of {window} steps")
        axes.annotate(
            f"{pairs[-1][1]:.3f}",
            pairs[-1],
            xytext=(6, 0),
            textcoords="offset points",
            color=BLUE,
            fontweight="bold",
            va="center",
            fontsize=10,
        )
    _attempts(axes, steps)
    axes.set_ylabel("reward", color=FAINT, fontsize=9)
    axes.legend(loc="upper left", frameon=False, fontsize=8.5, labelcolor=INK, ncols=3)
    bottom, ceiling = axes.get_ylim()
    axes.set_ylim(bottom, ceiling + 0.14 * (ceiling - bottom))


def _small(axes: Any, steps: Sequence[StepFigures], curve: Curve) -> None:
    axes.set_title(curve.title, loc="left", fontsize=9.5, color=INK)
    _frame(axes, steps)
    x, y = _known(steps, lambda step: step.get(curve.figure))
    if not x:
        _missing(axes, "not reported")
        return
    if len(x) <= MANY:
        axes.plot(x, y, color=curve.color, linewidth=1.6, marker="o", markersize=_marker(len(x)))
    else:
        axes.plot(x, y, color=curve.color, linewidth=0.8, alpha=0.3)
        axes.plot(x, moving_mean(list(y), smoothing(len(x))), color=curve.color, linewidth=1.8)
    above, upper = _known(steps, lambda step: step.get(curve.upper))
    if above:
        axes.plot(above, upper, color=curve.color, linewidth=1, alpha=0.45, linestyle=(0, (3, 2)), label=curve.upper_label)
        axes.legend(frameon=False, fontsize=7.5, labelcolor=FAINT, loc="best")
    if curve.zero:
        axes.set_ylim(0, 1.08 * max([*y, *upper]) if max([*y, *upper]) > 0 else 1)
    _attempts(axes, steps)


def _frame(axes: Any, steps: Sequence[StepFigures]) -> None:
    from matplotlib.ticker import MaxNLocator

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GRID)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if steps:
        first, last = steps[0].step, steps[-1].step
        room = max(0.5, 0.03 * (last - first))
        axes.set_xlim(first - room, last + room)


def _attempts(axes: Any, steps: Sequence[StepFigures]) -> None:
    for before, after in pairwise(steps):
        if before.attempt != after.attempt:
            axes.axvline((before.step + after.step) / 2, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))


def _missing(axes: Any, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=9)


def _known(steps: Sequence[StepFigures], of: Callable[[StepFigures], float | None]) -> tuple[list[int], list[float]]:
    pairs = [(step.step, value) for step in steps if (value := of(step)) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _marker(count: int) -> float:
    return 3.2 if count <= MANY else 0.0


def smoothing(count: int) -> int:
    """Steps that the moving mean of a run with so many steps goes over: about a twentieth, at least 3, at most 50."""
    return max(3, min(50, count // 20 if count > 100 else 5))
