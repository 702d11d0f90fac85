"""An attempt's life, with a fake of srun in the place of Slurm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import PACKAGED, load_site
from hpcrl.recipe import Limits, Recipe, Schedule
from hpcrl.run.directory import RunDirectory
from hpcrl.supervise import life as life_module
from hpcrl.supervise.heard import Heard
from hpcrl.supervise.job import Job
from hpcrl.supervise.life import Life
from hpcrl.tracking.journal import Journal


def test_ignitors_that_do_not_end_are_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_srun = tmp_path / "srun"
    fake_srun.write_text("#!/bin/sh\nexec sleep 60\n")
    fake_srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(life_module, "LATE_S", 0.5)
    run = RunDirectory.create(tmp_path / "run", name="t", recipe_json="{}")
    attempt, heard = run.new_attempt(), Heard()
    part = Component(name="all", groups=(), nodes=1, gpus_per_node=0, cpus_per_node=1, memory_gib=1, partition="")
    schedule = Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1)
    life = Life(
        attempt,
        Recipe(name="t", groups={}, streams=(), schedule=schedule, limits=Limits(drain_s=1.0)),
        Layout(components=(part,), no_kill=False, minutes=1),
        load_site(PACKAGED / "local-cluster.toml"),
        JobFacts(run=run.path, run_id=run.run_id, name="t", code=(), python=Path("/")),
        Job("1", 0, ("n1",)),
        {"all": ("n1",)},
        joined={},
        heard=heard,
        journal=Journal(attempt.journal / "supervisor.jsonl"),
        kill_wait=lambda: 5.0,
    )
    life.steps.tend(lambda step: None)
    heard.tell("preempted")
    began = time.monotonic()
    try:
        verdict = life.run()
    finally:
        life.steps.end()
    assert 1.4 < time.monotonic() - began < 10
    assert (verdict.what, verdict.reason) == ("again", "preempted")
    assert life.steps.ended()
