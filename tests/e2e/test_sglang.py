"""The whole loop with real servers of SGLang behind the inference role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.testing.command_run import CommandRun

pytestmark = pytest.mark.slow

# Of a server on a machine with other work, from its start to its first answer.
PATIENT = {"limits__wait_s": 280, "limits__call_s": 60, "limits__start_s": 280}


def sets(python: str, **more: Any) -> dict[str, Any]:
    return {"inference__sglang__python": python, "inference__sglang__max_tokens": 4096, **PATIENT, **more}


def published_hashes_are_served(ended: Any, steps: int) -> None:
    published = ended.published()
    assert set(published) == set(range(steps + 1))
    served = [record["version"] for record in ended.records("served")]
    assert served == sorted(served)
    assert served[0] == 0
    assert {record["way"] for record in ended.records("served")} == {"disk"}


def test_lock_step_trains_on_what_sglang_made(launcher: Any, tmp_path: Path, sglang_python: str, nothing_left: Any):
    run = tmp_path / "run"
    ended = launcher.finish(launcher.start(*launcher.arguments(run, **sets(sglang_python, steps=3))), run, 300)
    assert ended.code == 0, ended.output
    published_hashes_are_served(ended, 3)
    assert [record["version"] for record in ended.records("served")][:3] == [0, 1, 2]
    (engine,) = ended.records("engine")
    assert engine["name"].startswith("sglang 0.5.")
    steps = ended.steps()
    assert [step["version_lag_max"] for step in steps] == [0, 0, 0]
    # Of what a trainer in float32 and a server in float32 make of the same weights; a version that did not arrive shows here.
    assert all(abs(step["kl"]) < 1e-3 for step in steps)
    assert launcher.call("verify", str(run))[0] == 0
    nothing_left(ended)


def test_a_server_that_is_killed_is_started_again(launcher: Any, tmp_path: Path, sglang_python: str, nothing_left: Any):
    run = tmp_path / "run"
    process = launcher.start(*launcher.arguments(run, **sets(sglang_python, steps=6, window=2)))
    held = CommandRun(process, run)
    held.await_step(2, 280)
    port = next(
        p["ports"][0] for p in json.loads((run / "latest/plan.json").read_text())["processes"] if p["group"] == "inference"
    )
    (server,) = [p for p in psutil.process_iter(["cmdline"]) if _serves(p, port)]
    server.kill()
    ended = launcher.finish(process, run, 300)
    assert ended.code == 0, ended.output
    assert [(record["process"], record["signal"]) for record in ended.records("restart")] == [("inference.0", "SIGKILL")]
    assert len(ended.records("engine")) == 2
    assert "SGLang" in (run / "latest/logs/inference.0.log").read_text()
    assert ended.cursor() == {"step": 6, "prompts": 24, "beyond": []}
    assert launcher.call("verify", str(run))[0] == 0
    nothing_left(ended)


def _serves(process: psutil.Process, port: int) -> bool:
    line = process.info["cmdline"] or []
    return "launch.py" in " ".join(line[:3]) and str(port) in line


def test_an_interpreter_without_sglang_is_found_before_the_start(launcher: Any, tmp_path: Path):
    run = tmp_path / "run"
    arguments = launcher.arguments(run, inference__sglang__max_tokens=4096)
    code, output = launcher.call(*arguments)
    assert code != 0
    assert "has no SGLang" in output
    assert not run.exists()
