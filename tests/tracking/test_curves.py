import struct

import pytest

from hpcrl.tracking.curves import draw, smoothing
from hpcrl.tracking.figures import StepFigures

pytestmark = pytest.mark.slow


def step(n: int, **values: float) -> StepFigures:
    return StepFigures(n, 1 if n < 5 else 2, float(n), values)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [step(1)],
        [step(1, reward=0.5, loss=0.0, version_lag=0.0, version_lag_max=0.0, tokens_per_s=0.0)],
        [step(7, reward=0.5), step(9, loss=1.0)],
        [step(n, reward=0.1 * n, loss=-n, logprob_gap_mean=1e-3, logprob_gap_max=1e-2) for n in range(1, 9)],
        [step(n, **({"reward": 0.5} if n % 3 else {"grad_norm": 1e30})) for n in range(1, 100)],
    ],
    ids=["none", "bare", "one", "gaps", "several", "many"],
)
def test_every_run_has_a_picture(steps: list[StepFigures]) -> None:
    picture = draw(steps, "a run · $x_")
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 1200
    assert height > 900


def test_the_picture_depends_on_the_figures() -> None:
    assert draw([step(1, reward=0.1), step(2, reward=0.2)], "a") != draw([step(1, reward=0.1), step(2, reward=0.3)], "a")


def test_the_window_grows_with_the_run() -> None:
    assert [smoothing(count) for count in (0, 10, 100, 200, 5000)] == [5, 5, 5, 10, 50]
