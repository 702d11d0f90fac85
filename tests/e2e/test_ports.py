"""A run in one process keeps clear of the ports that others on the machine have."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config.codec import recipe_to_json
from hpcrl.config.override import build_recipe
from hpcrl.plan.local import local_allocation
from hpcrl.plan.plan import make_plan
from hpcrl.plan.ports import candidates
from hpcrl.run.directory import RunDirectory
from hpcrl.supervise.claim import PortClaims

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_threads")]


def test_ports_that_are_taken_and_ports_that_are_claimed_are_left_alone(launcher: Any, tmp_path: Path):
    recipe = build_recipe(launcher.recipe, (f"model={launcher.model}", f"data={launcher.data}", "steps=1"))
    run = RunDirectory.create(tmp_path / "run", name=recipe.name, recipe_json=recipe_to_json(recipe), sources={})
    here = local_allocation()
    taken, claimed = candidates(run.run_id, 2, [here.nodes[0].ephemeral])
    planned = make_plan(recipe, here, run.run_id)
    assert planned.ports[0] == taken[0], "what a run takes that does not look"
    with closing(PortClaims("another")) as another, socket.create_server(("127.0.0.1", taken[0])):
        another.claim([claimed])
        code, output = launcher.call("run", "--resume", str(run.path), "--in-process")
    assert code == 0, output
