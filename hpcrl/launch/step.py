"""The command of one srun step: the ignitors of a component, or of some of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts, gpus_flag
from hpcrl.launch.shell import expand
from hpcrl.launch.site import Container, Site

IGNITOR = "hpcrl.supervise.ignitor"


def srun_command(
    layout: Layout,
    component: Component,
    *,
    site: Site,
    job: JobFacts,
    arguments: Sequence[str],
    output: Path,
    environ: Mapping[str, str],
    nodes: Sequence[str] = (),
) -> list[str]:
    """Argument list that starts ``python -m hpcrl.supervise.ignitor ARGUMENTS``, once for each ignitor of the nodes.

    The tasks of a step count from 0, node by node in Slurm's order.

    Args:
        output: log of the whole step; Slurm replaces ``%t`` by the number of the task.
        environ: the batch script's, for variables in the site's container settings.
        nodes: names of the nodes to start on; empty = all of the component, which must then have no spares.

    Raises:
        ValueError: the component has spares, and no nodes are named.
    """
    if component.spares and not nodes:
        raise ValueError(f"component {component.name} has {component.spares} spare nodes; name the nodes of a step")
    count = len(nodes) or component.nodes
    tasks = component.ignitors_per_node
    flags = [
        f"--job-name={component.name}",
        f"--nodes={count}",
        f"--ntasks={count * tasks}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={component.cpus_per_node // tasks}",
        # Both said, always: what a step does not say it takes from the job, and two steps then get the same GPUs.
        "--exact",
        f"--gpus-per-node={gpus_flag(site, component.gpus_per_node)}",
        # All of the job's memory, so that the step of a replacement need not wait for the one that ends.
        "--mem=0",
        # Ignitors hand out the cores of the node among their processes.
        "--cpu-bind=none",
        "--distribution=block",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        # A site's default may end all tasks soon after the first one.
        "--wait=0",
        "--unbuffered",
        "--input=none",
        f"--output={output}",
        "--open-mode=append",
        "--export=ALL",
    ]
    if layout.is_het and not component.joins:
        flags.append(f"--het-group={layout.main.index(component)}")
    if layout.no_kill:
        flags.append("--no-kill")
    if nodes:
        flags.append(f"--nodelist={','.join(nodes)}")
    return ["srun", *flags, *_inside(site, job, component, environ), "-m", IGNITOR, *arguments]


def _inside(site: Site, job: JobFacts, component: Component, environ: Mapping[str, str]) -> list[str]:
    """The interpreter with what leads into the container."""
    container = site.container
    if container.kind == "none":
        return [f"{expand(site.python, environ) or job.python}/bin/python"]
    image = expand(container.image, environ)
    mounts = [f"{job.run}:{job.run}", *(expand(mount, environ) for mount in container.mounts)]
    if container.kind == "pyxis":
        return _pyxis(container, image, mounts, job, site)
    nv = ["--nv"] if component.gpus_per_node else []
    binds = [f"--bind={mount}" for mount in mounts]
    return ["apptainer", "exec", *nv, *binds, f"--pwd={job.run}", *container.options, image, container.python]


def _pyxis(container: Container, image: str, mounts: Sequence[str], job: JobFacts, site: Site) -> list[str]:
    # The image's own values of these would win otherwise.
    kept = ["PYTHONPATH", "PYTHONSAFEPATH", *site.environment]
    return [
        f"--container-image={image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={job.run}",
        f"--container-env={','.join(kept)}",
        *container.options,
        container.python,
    ]
