"""Engine, trainer and a third role on cores that they use in turn by a token: the same run, whoever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.stop import back_off, wait_for
from hpcrl.testing.command_run import CommandRun
from hpcrl.tracking.journal import JournalReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]

RECIPE = Path(__file__).with_name("ring_recipe.py")
STEPS = 4


def turns_of(ended: Any) -> list[tuple[int, str]]:
    """Epoch and group of every turn that was handed on, in the order of epochs."""
    attempts = RunDirectory.open(ended.path).attempts()
    read = [item for attempt in attempts for item in JournalReader(attempt.journal).read()]
    return sorted({(record["epoch"], who.partition(".")[0]) for who, record in read if record["kind"] == "let_go"})


def check_turns(ended: Any) -> None:
    """Each turn was one group's."""
    epochs = [epoch for epoch, _ in turns_of(ended)]
    assert len(epochs) == len(set(epochs))


@pytest.fixture(scope="module")
def together(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Without a token: everybody has his memory at the same time."""
    run = tmp_path_factory.mktemp("together") / "run"
    ended = launcher.in_process(run, recipe=RECIPE, steps=STEPS, token="false")
    assert ended.code == 0, ended.output
    assert ended.records("let_go") == []
    return ended


def test_lock_step_by_turns_is_the_same_run_bit_for_bit(launcher: Any, together: Any, tmp_path: Path):
    ended = launcher.in_process(tmp_path / "run", recipe=RECIPE, steps=STEPS)
    assert ended.code == 0, ended.output
    assert ended.computed() == together.computed()
    assert ended.published() == together.published()
    check_turns(ended)
    # The trainer's first turn publishes the first version.
    assert [group for _, group in turns_of(ended)].count("trainer") == STEPS + 1
    loaded = [record for record in ended.records("handover") if record["giver"] == "trainer"]
    assert len(loaded) >= STEPS
    if loaded[0]["resumed_bytes"] is None:
        # The trainer's first turn came before the engine's, which had let go of nothing yet.
        del loaded[0]
    assert all(record["freed_bytes"] > record["resumed_bytes"] > 0 for record in loaded), "weights, moments; weights"
    assert all(step["turn_s"] > 0 for step in ended.steps())
    code, shown = launcher.call("status", str(ended.path))
    assert code == 0
    assert "ring cores: trainer to inference " in shown
    assert "ring cores: inference to trainer " in shown


def test_three_members_in_processes_of_their_own_are_the_same_run_too(
    launcher: Any, together: Any, tmp_path: Path, nothing_left: Any
):
    ended = launcher.run(tmp_path / "run", recipe=RECIPE, steps=STEPS, evaluator="true", ranks=1)
    assert ended.code == 0, ended.output
    assert ended.computed() == together.computed()
    check_turns(ended)
    evaluated = [record for record in ended.records("metrics") if "found" in record]
    assert evaluated[-1]["step"] == STEPS
    # What was handed on with the token is what was published last, or something newer than the role asked for.
    assert all(record["found"] >= record["step"] for record in evaluated)
    assert launcher.call("verify", str(ended.path))[0] == 0
    nothing_left(ended)


def test_two_ranks_and_two_engines_let_go_together(launcher: Any, together: Any, tmp_path: Path):
    ended = launcher.run(tmp_path / "run", recipe=RECIPE, steps=3, window=2, ranks=2, replicas=2)
    assert ended.code == 0, ended.output
    check_turns(ended)
    first, alone = ended.steps()[0], together.steps()[0]
    assert first["reward"] == alone["reward"]
    assert first["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    steps = [record for record in ended.records("let_go") if record["freed_bytes"]]
    by_epoch = {epoch: [r for r in steps if r["epoch"] == epoch] for epoch, group in turns_of(ended) if group == "trainer"}
    assert {len(parts) for parts in by_epoch.values()} == {2}, "both ranks let go of each turn"
    assert launcher.call("verify", str(ended.path))[0] == 0


@pytest.mark.parametrize("window", [1, 2])
def test_a_run_goes_on_when_its_engine_is_killed_with_the_token_and_without_and_when_the_desk_is(
    launcher: Any, tmp_path: Path, nothing_left: Any, window: int
):
    run = tmp_path / "run"
    sets = {"groups__evaluator__role__every": 2, "groups__evaluator__role__seconds": 1.0}
    process = launcher.start(*launcher.arguments(run, recipe=RECIPE, steps=400, window=window, evaluator="true", **sets))
    held = CommandRun(process, run)
    held.await_step(3)
    kills = []
    for phases, name in ((("turn",), "inference.0"), (("serve", "update"), "inference.0"), (("serve",), "queue.0")):
        await_phase(run, "inference.0", phases)
        kills.append(held.kill(name))
        held.await_step(2)
    outcome = held.finish()
    ended = launcher.finish(process, run)
    restarts = [record["process"] for record in ended.records("restart")]
    assert restarts == ["inference.0", "inference.0", "queue.0"]
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert outcome.evidence.report.clean, outcome.evidence.report
    check_turns(ended)
    nothing_left(ended)


def await_phase(run: Path, name: str, phases: tuple[str, ...]) -> None:
    """Wait until a process is at one of some phases, as it said last."""
    reader, at = JournalReader(RunDirectory.open(run).attempts()[-1].journal), [""]

    def poll() -> bool | None:
        for who, record in reader.read():
            if who == name and record["kind"] == "phase":
                at[0] = record["name"]
        return at[0] in phases or None

    wait_for(f"{name} to be at {phases}", poll, seconds=60, pauses=back_off(0.005, 0.02))
