import io

import pytest
from rich.console import Console

from hpcrl.tracking.figures import Phase, StepFigures
from hpcrl.tracking.view import Snapshot, duration, panel, plain_line, sparkline, time_left

NOW = 1_000_000.0


def step(n: int, attempt: int = 1, **values: float) -> StepFigures:
    return StepFigures(n, attempt, NOW - 100 + 10 * n, values)


def shot(**changes: object) -> Snapshot:
    fields = {
        "name": "tiny",
        "attempt": 1,
        "total": 20,
        "steps": [
            step(n, reward=0.1 * n, tokens_per_s=190.46, version_lag=0.5, queue_rows=64, step_s=4.0) for n in range(1, 8)
        ],
        "phases": {
            "rollout.0": Phase(1, "generate", 8, NOW - 2),
            "trainer.0": Phase(1, "step", 8, NOW - 90),
        },
        "groups": ("rollout", "reward", "trainer"),
        "started": NOW - 100,
        "now": NOW,
    }
    return Snapshot(**{**fields, **changes})


def text(snapshot: Snapshot, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(panel(snapshot, console))
    return capture.get()


def test_a_plain_line_greps_and_leaves_out_what_lacks() -> None:
    assert plain_line(step(3, reward=0.2341, step_s=4.0), 20) == "step 3/20 reward 0.234 step_s 4.00"
    assert plain_line(step(3), 20) == "step 3/20"
    assert plain_line(step(1, reward=0.5, loss=-0.01, version_lag=1.5, tokens_per_s=12.0), 2).isascii()


def test_the_panel_says_where_the_run_is() -> None:
    shown = text(shot())
    for part in ("tiny", "step 7/20", "reward 0.700", "tokens/s 190.5", "version lag 0.50", "queue rows 64", "s/step 4.00"):
        assert part in shown
    assert "1 m 40 s so far" in shown
    lines = {line.split()[1]: line for line in shown.splitlines() if "ago" in line or "not up" in line}
    assert "generate step 8" in lines["rollout.0"]
    assert "1 m 30 s ago" in lines["trainer.0"]
    assert "not up yet" in lines["reward"]
    assert [name.split(".")[0] for name in lines] == ["rollout", "reward", "trainer"]


def test_before_the_first_step_and_after_the_last() -> None:
    assert "step 0/20" in text(shot(steps=[], phases={}))
    assert "reward " in text(shot(steps=[step(1)]))
    assert "done in" in text(shot(total=7))


def test_many_processes_take_a_line_a_group() -> None:
    phases = {f"rollout.{n}": Phase(1, "generate" if n % 4 else "wait", n, NOW - n) for n in range(64)}
    shown = text(shot(phases=phases))
    assert "rollout x64" in shown
    assert "48 generate, 16 wait" in shown
    assert len(shown.splitlines()) < 15


@pytest.mark.parametrize("width", [1, 2, 5, 12, 20, 40, 60, 80, 120, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= max(width, 1) for line in text(shot(), width).splitlines())


def test_a_sparkline_has_the_shape_of_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([2.0, None, 2.0], 10) == "▁▁"
    assert sparkline([], 10) == sparkline([None], 10) == sparkline([1.0], 0) == ""
    rising = sparkline([float(n) for n in range(1000)], 8)
    assert rising == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0 s"), (59.4, "59 s"), (185, "3 m 05 s"), (7620, "2 h 07 m"), (273_700, "3 d 04 h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_time_left_is_the_pace_of_this_attempt() -> None:
    steps = [step(n) for n in range(1, 8)]
    assert time_left(steps, 1, 20, NOW - 30) == pytest.approx(130)
    assert time_left(steps, 1, 20, NOW - 26) == pytest.approx(126)
    assert time_left(steps, 1, 7, NOW) == 0
    assert time_left(steps[:1], 1, 20, NOW) is None
    assert time_left(steps, 2, 20, NOW) is None
