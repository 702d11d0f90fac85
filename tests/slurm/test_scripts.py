"""Rendered scripts and steps on a real Slurm: it takes them, and starts what the layout says."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrl.launch.environment import submit_environment
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts, render_script
from hpcrl.launch.site import PACKAGED, load_site
from hpcrl.launch.step import srun_command
from hpcrl.testing.slurm.cluster import Cluster

pytestmark = pytest.mark.slow
SITE = load_site(PACKAGED / "local-cluster.toml")


def component(name: str, nodes: int, gpus: int, cpus: int, spares: int = 0) -> Component:
    return Component(
        name=name,
        groups=(name,),
        nodes=nodes,
        gpus_per_node=gpus,
        cpus_per_node=cpus,
        memory_gib=8,
        partition="main",
        spares=spares,
    )


HET = Layout(
    components=(component("hub", 1, 0, 4), component("inference", 1, 2, 4), component("trainer", 2, 4, 16)),
    no_kill=False,
    minutes=5,
)
SPARE = Layout(components=(component("all", 3, 4, 16, spares=1),), no_kill=True, minutes=5)


@pytest.fixture
def job() -> Iterator[JobFacts]:
    # Named to be hard to quote.
    with tempfile.TemporaryDirectory(prefix='hpcrl it\'s "#1" ', dir="/tmp") as folder:
        run = Path(folder)
        (run / "slurm").mkdir()
        yield JobFacts(run=run, run_id="id", name="a test", code=(run / "code",), python=run / "venv")


def stand_in(job: JobFacts, steps: list[list[str]]) -> None:
    """An interpreter that starts the steps where hpcrl's supervisor would, and prints where it is as an ignitor."""
    path = job.python / "bin" / "python"
    path.parent.mkdir(parents=True)
    starts = "\n".join(f"{shlex.join(step)} &" for step in steps)
    path.write_text(
        "#!/bin/bash\n"
        'if [ "$2" = hpcrl.supervise.supervisor ]; then\n'
        'env > "$3/seen"\n'
        f'{starts}\nfor job in $(jobs -p); do wait $job || exit 1; done\ntouch "$3/ended"\n'
        'else echo "$SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES"; fi\n'
    )
    path.chmod(0o755)


def submit(cluster: Cluster, text: str, job: JobFacts, *options: str, **environ: str) -> str:
    script = job.run / "job.sh"
    script.write_text(text)
    env = {**submit_environment({**os.environ, **cluster.env}), **environ}
    done = subprocess.run(["sbatch", *options, str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in job.run.glob("**/*.log"))
    return done.stdout + done.stderr


@pytest.mark.parametrize("layout", [HET, SPARE], ids=["het", "spare"])
def test_sbatch_accepts_it(slurm_cluster, job, layout):
    assert "to start at" in submit(slurm_cluster, render_script(layout, SITE, job), job, "--test-only")


def test_each_step_gets_the_nodes_and_gpus_of_its_component(slurm_cluster, job):
    steps = [
        srun_command(HET, item, site=SITE, job=job, arguments=(), output=job.run / f"{item.name}.log", environ={})
        for item in HET.components
    ]
    stand_in(job, steps)
    poison = {"SLURM_GPUS_PER_NODE": "7", "SLURM_CPU_BIND": "rank", "SLURM_ARRAY_TASK_ID": "1", "SLURM_EXACT": "no"}
    submit(slurm_cluster, render_script(HET, SITE, job), job, "--wait", **poison)
    assert (job.run / "ended").exists()
    seen = {line.partition("=")[0] for line in (job.run / "seen").read_text().splitlines()}
    assert not seen & poison.keys()
    assert {"SLURM_JOB_ID", "SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_2", "SLURM_CONF"} <= seen
    hub, inference, trainer = (
        sorted(line.split() for line in (job.run / f"{item.name}.log").read_text().splitlines() if line[:1] == "n")
        for item in HET.components
    )
    assert [line[1:] for line in hub] == [["0"]]
    assert [line[1] for line in inference] == ["0", "1"]
    assert all(len(line[2].split(",")) == 2 for line in inference)
    assert sorted(int(line[1]) for line in trainer) == list(range(8))
    # Tasks count node by node.
    assert len({line[0] for line in trainer if int(line[1]) < 4}) == 1
    assert all(line[2] == "0,1,2,3" for line in trainer)
