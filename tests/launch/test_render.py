from __future__ import annotations

import dataclasses
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from hpcrl.launch.environment import submit_environment
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts, render_all, render_script
from hpcrl.launch.site import PACKAGED, Container, Site, load_site
from hpcrl.launch.step import srun_command
from hpcrl.launch.submitit_compat import VERSION, sbatch_lines
from hpcrl.run.errors import CheckFailed

GOLDEN = Path(__file__).parent / "golden"
JOB = JobFacts(
    run=Path("/runs/first try"),
    run_id="20260101-000000-abc123",
    name="sums",
    code=(Path("/runs/first try/code"),),
    python=Path("/home/me/venv"),
)
LOCAL = load_site(PACKAGED / "local-cluster.toml")


def component(name: str, nodes: int = 1, gpus: int = 0, cpus: int = 4, **facts) -> Component:
    given = {"groups": (name,), "memory_gib": 8.0, "partition": "main", **facts}
    return Component(name=name, nodes=nodes, gpus_per_node=gpus, cpus_per_node=cpus, **given)


def single(**facts) -> Layout:
    return Layout(components=(component("all", gpus=4, cpus=16, **facts),), no_kill=bool(facts.get("spares")), minutes=20)


HET = Layout(
    components=(component("hub"), component("inference", gpus=2), component("trainer", nodes=2, gpus=4, cpus=32)),
    no_kill=False,
    minutes=90,
)
PYXIS = load_site(PACKAGED / "example-pyxis.toml")
CASES = {
    "single": (single(), LOCAL, JOB),
    "het": (HET, LOCAL, JOB),
    "spare": (single(nodes=3, spares=1), LOCAL, JOB),
    "pyxis": (single(partition="batch"), PYXIS, JOB),
    "apptainer": (single(partition="gpu"), load_site(PACKAGED / "example-apptainer.toml"), JOB),
    "modules": (single(partition="gpu"), load_site(PACKAGED / "example-modules.toml"), JOB),
    "no_requeue": (single(), LOCAL, dataclasses.replace(JOB, requeue=False)),
}


def step(layout: Layout, site: Site, job: JobFacts, **facts) -> list[str]:
    last = layout.components[-1]
    nodes = tuple(f"n{index}" for index in range(1, last.nodes - last.spares + 1)) if last.spares else ()
    given = {"arguments": ("RUN", "1"), "output": job.run / "step.log", "environ": {"USER": "me"}, "nodes": nodes, **facts}
    return srun_command(layout, last, site=site, job=job, **given)


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    """HPCRL_WRITE_GOLDEN=1 writes the files anew; look at the difference before keeping it."""
    text = render_script(*CASES[name]) + "\n# its last component's step:\n# " + "\n# ".join(step(*CASES[name])) + "\n"
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("HPCRL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_bash_reads_it_and_it_stays_short(name, tmp_path):
    text = render_script(*CASES[name])
    assert len(text.splitlines()) < 60
    (tmp_path / "job.sh").write_text(text)
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True, timeout=20)


def test_golden_of_a_job_that_joins():
    """Beside its main job's script, which is that of the other components alone."""
    hub, inference, trainer = HET.components
    inference = dataclasses.replace(inference, partition="low", joins=True)
    layout = dataclasses.replace(HET, components=(hub, trainer, inference))
    scripts = render_all(layout, LOCAL, JOB)
    assert list(scripts) == ["batch-inference.sh", "batch.sh"]
    assert scripts["batch.sh"] == render_script(dataclasses.replace(HET, components=(hub, trainer)), LOCAL, JOB)
    text = scripts["batch-inference.sh"]
    assert len(text.splitlines()) < 60
    text += "\n# its step:\n# " + "\n# ".join(step(layout, LOCAL, JOB)) + "\n"
    path = GOLDEN / "joined.sh"
    if os.environ.get("HPCRL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_later_components_say_nothing_of_the_batch_step():
    text = render_script(HET, LOCAL, JOB)
    first, *later = text.split("#SBATCH hetjob")
    assert len(later) == 2
    for option in ("--output", "--open-mode", "--signal"):
        assert f"#SBATCH {option}" in first
        assert not any(f"#SBATCH {option}" in part for part in later)
    assert all("--requeue" in part and "--comment=hpcrl:20260101-000000-abc123" in part for part in (first, *later))
    assert not any("--error" in part for part in (first, *later))


def run_body(text: str, tmp_path: Path, environ: dict[str, str], interpreter: Path) -> dict[str, str]:
    """The environment in which the script executes its interpreter."""
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$WITNESS.args"\nenv -0 > "$WITNESS"\n')
    interpreter.chmod(0o755)
    script, witness = tmp_path / "job.sh", tmp_path / "witness"
    script.write_text(text)
    subprocess.run(["bash", str(script)], env={**environ, "WITNESS": str(witness)}, check=True, timeout=20)
    found = dict(item.split("=", 1) for item in witness.read_text().split("\0") if item)
    return {**found, "argv": (tmp_path / "witness.args").read_text()}


def test_what_the_supervisor_is_started_with(tmp_path):
    prefix = tmp_path / 'it\'s "a" venv'
    run = Path('/runs/it\'s $HOME "x" # &')
    job = dataclasses.replace(JOB, run=run, code=(run / "code",), python=prefix)
    site = dataclasses.replace(LOCAL, environment={"PLAIN": "a b $(false) `false` \\ 'q'", "HERS": "/x/$USER/${USER}"})
    poison = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_GPUS_PER_NODE": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_MEM_PER_NODE": "1",
        "SLURM_NTASKS": "9",
        "SBATCH_PARTITION": "x",
        "SRUN_CPUS_PER_TASK": "1",
        "PMIX_RANK": "0",
        "PMI_RANK": "0",
        "PYTHONPATH": "/edited",
    }
    kept = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_ID_HET_GROUP_1": "13",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "n1",
    }
    environ = {"PATH": os.environ["PATH"], "USER": "me", "HOME": "/home/me", **poison, **kept}
    found = run_body(render_script(HET, site, job), tmp_path, environ, prefix / "bin" / "python")
    assert found["argv"] == f"-m\0hpcrl.supervise.supervisor\0{run}\0"
    assert not {name for name in found if name in poison} - {"PYTHONPATH"}
    assert {name: found[name] for name in kept} == kept
    assert found["PYTHONPATH"] == str(run / "code")
    assert found["PYTHONSAFEPATH"] == "1"
    assert found["TRITON_CACHE_DIR"] == "/tmp/hpcrl-me/12/triton"
    assert found["HF_MODULES_CACHE"] == "/tmp/hpcrl-me/12/hf_modules"
    assert "HF_HOME" not in found
    assert found["PATH"].startswith(f"{prefix}/bin:")
    assert found["PLAIN"] == "a b $(false) `false` \\ 'q'"
    assert found["HERS"] == "/x/me/me"


def test_modules_are_loaded_and_a_missing_one_ends_the_job(tmp_path):
    init = tmp_path / "init.sh"
    init.write_text('module() { [ "$3" != missing ] && export LOADED="$*"; }\n')
    site = Site(modules=("cuda/12.8", "python"), module_init=str(init))
    job = dataclasses.replace(JOB, python=tmp_path / "venv")
    environ = {"PATH": os.environ["PATH"]}
    found = run_body(render_script(single(), site, job), tmp_path, environ, tmp_path / "venv" / "bin" / "python")
    assert found["LOADED"] == "load cuda/12.8 python"
    (tmp_path / "bad.sh").write_text(render_script(single(), dataclasses.replace(site, modules=("a", "missing")), job))
    assert subprocess.run(["bash", str(tmp_path / "bad.sh")], env=environ, timeout=20).returncode == 1


@pytest.mark.parametrize("path", ["/runs/a:b", "/runs/a\nb", "/runs/a\\b", "/runs/100%"])
def test_paths_that_would_be_misread_are_refused(path):
    with pytest.raises(CheckFailed, match="run directory"):
        render_script(single(), LOCAL, dataclasses.replace(JOB, run=Path(path)))


def test_a_comma_is_refused_only_with_a_container():
    job = dataclasses.replace(JOB, run=Path("/runs/a,b"))
    assert "a,b" in render_script(single(), LOCAL, job)
    with pytest.raises(CheckFailed, match="comma"):
        render_script(single(), PYXIS, job)


def test_submitit_is_the_version_whose_private_function_is_known():
    assert version("submitit") == VERSION
    lines = sbatch_lines({"nodes": 2, "job_name": "a b"}, {"output": "x y", "signal": "B:USR1@9", "requeue": True})
    assert "#SBATCH --nodes=2" in lines
    assert "#SBATCH --job-name='a b'" in lines
    assert "#SBATCH --output='x y'" in lines
    assert "#SBATCH --signal=B:USR1@9" in lines
    assert "#SBATCH --requeue" in lines
    assert not [line for line in lines if "error" in line or "wckey" in line or "array" in line]


def test_a_step_says_all_that_it_would_inherit():
    argv = step(HET, LOCAL, JOB)
    for flag in ("--het-group=2", "--nodes=2", "--ntasks=8", "--gpus-per-node=4", "--cpus-per-task=8", "--exact", "--mpi=none"):
        assert flag in argv
    assert argv[-5:] == ["/home/me/venv/bin/python", "-m", "hpcrl.supervise.ignitor", "RUN", "1"]
    assert not [flag for flag in step(*CASES["single"]) if flag.startswith(("--het-group", "--no-kill", "--nodelist"))]
    hub = srun_command(HET, HET.components[0], site=LOCAL, job=JOB, arguments=(), output=Path("/x/log.%t"), environ={})
    assert "--gpus-per-node=0" in hub
    assert "--ntasks=1" in hub
    assert "--output=/x/log.%t" in hub


def test_a_step_beside_spares_is_pinned():
    argv = step(*CASES["spare"])
    assert "--nodelist=n1,n2" in argv
    assert "--nodes=2" in argv
    assert "--no-kill" in argv
    with pytest.raises(ValueError, match="spare"):
        step(*CASES["spare"], nodes=())


def test_a_step_enters_the_container():
    site = Site(gres="gpu:h100", container=Container(kind="pyxis", image="/i/$USER.sqsh", mounts=("/a:/a",), options=("--x",)))
    argv = step(single(), site, JOB)
    assert "--container-image=/i/me.sqsh" in argv
    assert "--container-mounts=/runs/first try:/runs/first try,/a:/a" in argv
    assert "--gpus-per-node=h100:4" in argv
    assert argv.index("--x") < argv.index("python3")
    site = dataclasses.replace(site, container=dataclasses.replace(site.container, kind="apptainer"))
    argv = step(single(), site, JOB)
    assert argv[argv.index("apptainer") :][:3] == ["apptainer", "exec", "--nv"]
    assert argv[-6:-3] == ["/i/me.sqsh", "python3", "-m"]


def test_sbatch_gets_nothing_of_an_outer_job():
    environ = {"SLURM_JOB_ID": "1", "SBATCH_QOS": "x", "SLURM_CONF": "/c", "PATH": "/bin", "PMIX_RANK": "0"}
    assert submit_environment(environ) == {"SLURM_CONF": "/c", "PATH": "/bin"}
