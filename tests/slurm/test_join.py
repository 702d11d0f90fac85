"""Runs whose actors are a job of their own, in a partition that can be preempted, beside a main job that cannot."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hpcrl.launch.jobs import recorded_jobs
from hpcrl.launch.layout import Asked, Component, Layout
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.steer import cancel, resume
from hpcrl.launch.submit import Order, prepare, submit
from hpcrl.launch.survey import survey
from hpcrl.testing.slurm.cluster import Cluster

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[1] / "e2e" / "tiny_recipe.py"
STEPS = 60


def component(name: str, *groups: str, joins: bool = False) -> Component:
    # What joins takes a whole node, so that it can be preempted alone.
    return Component(
        name=name,
        groups=groups,
        nodes=1,
        gpus_per_node=0,
        cpus_per_node=32 if joins else 8,
        memory_gib=4,
        partition="low" if joins else "main",
        joins=joins,
    )


LEARNS = Layout(
    components=(
        component("hub", "rollout", "reward"),
        component("trainer", "trainer"),
        component("inference", "inference", joins=True),
    ),
    no_kill=False,
    minutes=15,
)
COUNTS = Layout(
    components=(component("hub", "source", "doubler", "sink"), component("idler", "idler", joins=True)),
    no_kill=False,
    minutes=10,
)


def slurm_of(cluster: Cluster) -> Slurm:
    return Slurm({**os.environ, **cluster.env})


def joined_jobs(run: Any, name: str) -> list[str]:
    return [str(item.job) for item in recorded_jobs(run.run, name)]


def shown(cluster: Cluster, job: str) -> dict[str, str]:
    text = cluster.run("scontrol", "show", "job", job, "--oneliner").splitlines()[0]
    return dict(field.partition("=")[::2] for field in text.split())


def where(run: Any, attempt: int) -> dict[str, list[str]]:
    return json.loads((run.path / f"attempt_{attempt}" / "slurm.json").read_text())["nodes"]


def test_two_jobs_make_one_run_that_learns_and_ends_by_itself(runs: Any):
    run = runs.submit("tiny", LEARNS, "steps=3")
    (actors,) = joined_jobs(run, "inference")
    run.wait("COMPLETED", "FAILED")
    run.cluster.wait_job(actors, {"COMPLETED"}, seconds=30)
    assert [step["version"] for step in run.records("step")] == [1, 2, 3], run.log
    assert run.verdicts() == ["done"], run.log
    plan = json.loads((run.path / "attempt_1" / "plan.json").read_text())
    nodes = where(run, 1)
    assert {p["node"] for p in plan["processes"] if p["group"] == "inference"} == set(nodes["inference"])
    assert shown(run.cluster, actors)["NodeList"] == ",".join(nodes["inference"])
    assert not set(nodes["inference"]) & {*nodes["hub"], *nodes["trainer"]}
    assert joined_jobs(run, "inference") == [actors], "nothing was submitted again"
    run.nothing_is_left()


def test_the_actors_are_preempted_and_the_main_job_keeps_its_nodes(runs: Any):
    run = runs.submit("tiny", LEARNS, f"steps={STEPS}")
    (actors,) = joined_jobs(run, "inference")
    run.wait_for_line('"step":3,"version":3', 1, "trainer.0")
    (node,) = where(run, 1)["inference"]
    high = run.cluster.run(
        "sbatch", "--parsable", "--partition=high", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap=sleep 5"
    ).strip()

    def waits() -> str | None:
        (seen,) = survey([run.run], slurm_of(run.cluster))
        return seen.standing.why if seen.standing.word == "waiting" else None

    why = run.wait_for("its standing to say that it waits", waits)
    assert f"inference: job {actors}" in why
    run.cluster.wait_job(high, {"COMPLETED"}, seconds=60)
    run.wait("COMPLETED", "FAILED")

    assert run.verdicts() == ["relaunch", "done"], run.log
    assert f"job {actors} of component inference" in run.records("drain", 1)[-1]["reason"]
    saved = [step["step"] for step in run.records("step", 1)]
    assert saved == list(range(1, len(saved) + 1))
    assert 3 <= len(saved) < STEPS
    run.trained_exactly(STEPS)
    lives = [json.loads((run.path / f"attempt_{n}" / "slurm.json").read_text()) for n in (1, 2)]
    assert [(life["id"], life["restarts"]) for life in lives] == [(run.job, 0)] * 2
    joined = [json.loads((run.path / f"attempt_{n}" / "joined.json").read_text())["inference"] for n in (1, 2)]
    assert [(life["job"], life["restarts"]) for life in joined] == [(actors, 0), (actors, 1)], run.log
    assert [life["nodes"]["trainer"] for life in lives] == [lives[0]["nodes"]["trainer"]] * 2
    assert shown(run.cluster, run.job)["Restarts"] == "0"
    run.cluster.wait_job(actors, {"COMPLETED"}, seconds=30)
    assert len(recorded_jobs(run.run)) == 1
    run.nothing_is_left()


def test_a_joined_job_that_dies_is_submitted_again_and_one_that_lives_joins_the_next_life(runs: Any):
    run = runs.submit("toy", COUNTS, "forever=true")
    run.wait_for_line('"put"', 1, "source.0")
    (joiner,) = [p for p in run.processes() if "hpcrl.supervise.joiner" in p.info["cmdline"]]
    joiner.send_signal(signal.SIGKILL)
    run.wait_for_line('"put"', 2, "source.0")
    first, second = joined_jobs(run, "idler")
    assert run.verdicts() == ["relaunch"], run.log
    assert shown(run.cluster, run.job)["Restarts"] == "0"
    run.cluster.run("scontrol", "requeue", run.job)
    run.wait_for("the third attempt", lambda: (run.path / "attempt_3" / "plan.json").exists())
    joined = [json.loads((run.path / f"attempt_{n}" / "joined.json").read_text())["idler"] for n in (1, 2, 3)]
    assert [(life["job"], life["restarts"]) for life in joined] == [(first, 0), (second, 0), (second, 0)]
    assert run.verdicts() == ["relaunch", "leave"], run.log
    assert json.loads((run.path / "attempt_3" / "slurm.json").read_text())["restarts"] == 1


def test_cancel_ends_both_jobs_and_resume_submits_both_again(runs: Any):
    slurm = slurm_of(runs.cluster)
    run = runs.submit("toy", COUNTS, "forever=true")
    (idler,) = joined_jobs(run, "idler")
    run.wait_for_line('"put"', 1, "source.0")
    cancel(run.run, slurm)
    run.wait("COMPLETED", "FAILED", seconds=60)
    run.cluster.wait_job(idler, {"COMPLETED"}, seconds=30)
    assert run.verdicts() == ["cancelled"], run.log
    run.nothing_is_left()

    again = resume(run.run, slurm, hold=True)
    _, next_idler = joined_jobs(run, "idler")
    assert next_idler not in (idler, str(again))
    (seen,) = survey([run.run], slurm)
    assert (seen.job_id, seen.joined["idler"].id) == (again, int(next_idler))
    assert seen.standing.word == "held"
    assert "cancelled" in cancel(run.run, slurm)
    for job in (str(again), next_idler):
        run.cluster.wait_job(job, {"CANCELLED"}, seconds=20)
    assert len(run.run.attempts()) == 1


def test_submit_tests_and_queues_every_script(runs: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = tmp_path / "prompts.jsonl"
    slurm = slurm_of(runs.cluster)
    monkeypatch.chdir(tmp_path)
    order = Order(
        recipe=TINY,
        sets=(f"model={tiny_model}", f"data={data}"),
        site="local-cluster",
        asked=Asked(partitions={"inference": "low"}),
        name="apart",
        run_dir=tmp_path / "apart",
        hold=True,
    )
    done = submit(prepare(order, slurm), slurm)
    (actors,) = done.joined.values()
    facts = shown(runs.cluster, str(actors))
    assert facts["Comment"] == f"hpcrl:{done.run.run_id}:inference"
    assert (facts["Partition"], facts["JobName"], facts["Requeue"]) == ("low", "apart-inference", "1")
    assert facts["Dependency"].startswith(f"after:{done.job}")
    assert shown(runs.cluster, str(done.job))["Partition"] == "main"
    assert [(item.job, item.why) for item in recorded_jobs(done.run)] == [(done.job, "submit")]
    assert [(item.job, item.why) for item in recorded_jobs(done.run, "inference")] == [(actors, "submit")]
    assert cancel(done.run, slurm) == f"jobs {done.job}, {actors} are cancelled"
