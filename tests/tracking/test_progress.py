import io
import os
from collections.abc import Callable

import pytest
from rich.console import Console

from hpcrl.recipe import Recipe, Role, RoleGroup, Schedule
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.progress import Progress

RECIPE = Recipe(
    name="tiny",
    groups={name: RoleGroup(role=Role()) for name in ("rollout", "reward", "trainer", "inference")},
    streams=(),
    schedule=Schedule(steps=6, prompts_per_step=2, samples_per_prompt=4),
)


def terminal(**options: object) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=90, height=30, _environ={"TERM": "xterm"}, **options), file


def test_without_a_terminal_every_new_step_is_one_line(run: RunDirectory, record_step: Callable[..., None]) -> None:
    attempt, file = run.new_attempt(), io.StringIO()
    progress = Progress(RECIPE, attempt, console=Console(file=file))
    progress.update()
    assert file.getvalue() == ""
    record_step(attempt, 1, reward=0.25)
    progress.update()
    progress.update()
    assert file.getvalue().startswith("step 1/6 reward 0.250 loss ")
    record_step(attempt, 2)
    record_step(attempt, 3)
    progress.close("done, 3 steps")
    lines = file.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["step", f"{n}/6"] for n in (1, 2, 3)]
    assert lines[3:] == ["done, 3 steps"]
    assert "\x1b" not in file.getvalue()


def test_a_long_plain_line_is_not_wrapped(run: RunDirectory, record_step: Callable[..., None]) -> None:
    attempt, file = run.new_attempt(), io.StringIO()
    record_step(attempt, 1)
    Progress(RECIPE, attempt, console=Console(file=file, width=20)).close("x" * 50)
    assert [line[:4] for line in file.getvalue().splitlines()] == ["step", "xxxx"]


def test_earlier_attempts_are_not_printed_again(run: RunDirectory, record_step: Callable[..., None]) -> None:
    first = run.new_attempt()
    for step in (1, 2, 3):
        record_step(first, step)
    second, file = run.new_attempt(), io.StringIO()
    progress = Progress(RECIPE, second, console=Console(file=file))
    progress.update()
    assert file.getvalue() == ""
    record_step(second, 3)
    record_step(second, 4)
    progress.update()
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["3/6", "4/6"]


def test_on_a_terminal_a_panel_lives(trained: RunDirectory) -> None:
    console, file = terminal()
    progress = Progress(RECIPE, trained.latest(), console=console)
    progress.update()
    first = file.getvalue()
    assert "step 6/6" in first
    assert "trainer.0" in first
    assert "▁" in first
    progress.update()
    assert "\x1b[1A" in file.getvalue()[len(first) :], "the second panel is drawn over the first"
    progress.close("finished")
    assert file.getvalue().endswith("finished\n")
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1, "the cursor is shown again"


def test_no_color_is_honoured(trained: RunDirectory) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=90, _environ={"TERM": "xterm-256color", "NO_COLOR": "1"})
    progress = Progress(RECIPE, trained.latest(), console=console)
    progress.update()
    progress.close()
    assert "step 6/6" in file.getvalue()
    assert not any(f"\x1b[{code}" in file.getvalue() for code in ("3", "9", "1;3", "1;9", "38"))


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_dumb_terminal_gets_lines(trained: RunDirectory, environment: dict[str, str]) -> None:
    file = io.StringIO()
    progress = Progress(RECIPE, trained.latest(), console=Console(file=file, force_terminal=True, _environ=environment))
    progress.close()
    assert file.getvalue().count("\n") == 6
    assert "\x1b" not in file.getvalue()


def test_a_terminal_without_unicode_gets_lines(trained: RunDirectory) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    progress = Progress(RECIPE, trained.latest(), console=Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}))
    progress.close("ended → well")
    assert raw.getvalue().splitlines()[-1] == b"ended ? well"
    assert raw.getvalue().count(b"\nstep ") == 5


@pytest.mark.parametrize("width", [1, 7, 33])
def test_a_narrow_terminal_does_not_break_it(trained: RunDirectory, width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=2, _environ={"TERM": "xterm"})
    progress = Progress(RECIPE, trained.latest(), console=console)
    progress.update()
    progress.close("end")
    assert file.getvalue().endswith("end\n")


def test_a_closed_output_stops_the_view_and_nothing_else(run: RunDirectory, record_step: Callable[..., None]) -> None:
    attempt = run.new_attempt()
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as pipe:
        progress = Progress(RECIPE, attempt, console=Console(file=pipe))
        record_step(attempt, 1)
        progress.update()
        record_step(attempt, 2)
        progress.update()
        progress.close("end")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    gone = io.StringIO()
    gone.close()
    progress = Progress(RECIPE, attempt, console=Console(file=gone, force_terminal=True, width=80, _environ={"TERM": "xterm"}))
    progress.update()
    progress.close("end")
