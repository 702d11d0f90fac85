"""``hpcrl plan``: where a recipe's processes would go, without starting anything."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from hpcrl.plan.plan import Plan, PlannedProcess
    from hpcrl.recipe import Recipe

# Ports and hash depend on the id of the run, which only `hpcrl run` gives.
PREVIEW_RUN = "preview"
MOST_ROWS = 60


@click.command("plan")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override a parameter or field of the recipe.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    help="Plan for so many equal nodes instead of this host. A recipe with parameters nodes and gpus_per_node fills them.",
)
@click.option("--gpus-per-node", type=click.IntRange(min=0), help="GPUs of a node [0].")
@click.option("--cpus-per-node", type=click.IntRange(min=1), help="Cores of a node; not checked when left out.")
@click.option("--memory-per-node", type=float, default=0.0, metavar="GIB", help="Host memory; not checked when left out.")
@click.option("--gpu-memory", type=float, default=0.0, metavar="GIB", help="Memory of a GPU; not checked when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
def command(
    recipe: Path,
    sets: tuple[str, ...],
    nodes: int | None,
    gpus_per_node: int | None,
    cpus_per_node: int | None,
    memory_per_node: float,
    gpu_memory: float,
    as_json: bool,
) -> None:
    """Show where each process of RECIPE would run, and what flows between them.

    Starts nothing. Exit code 2 when the recipe cannot run; every reason is printed.
    """
    from hpcrl.config.override import build_recipe
    from hpcrl.plan.allocation import Allocation
    from hpcrl.plan.local import local_allocation
    from hpcrl.plan.plan import make_plan
    from hpcrl.run.errors import CheckFailed

    if nodes is None and (gpus_per_node or cpus_per_node or memory_per_node or gpu_memory):
        raise click.UsageError("what a node has goes with --nodes; without it the plan is for this host")
    try:
        built = build_recipe(recipe, sets, size={"nodes": nodes, "gpus_per_node": gpus_per_node})
        if nodes is None:
            allocation = local_allocation()
        else:
            allocation = Allocation.uniform(
                nodes=nodes,
                gpus_per_node=gpus_per_node or 0,
                cpus=cpus_per_node or 1,
                memory_gib=memory_per_node,
                gpu_memory_gib=gpu_memory,
                cpus_shared=cpus_per_node is None,
            )
        plan = make_plan(built, allocation, PREVIEW_RUN)
    except CheckFailed as error:
        click.echo(f"hpcrl: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(plan.to_json(), nl=False)
    else:
        show(built, plan)


def show(recipe: Recipe, plan: Plan) -> None:
    """Print a plan as tables."""
    from rich.console import Console

    console = Console()
    nodes, gpus = len(plan.allocation.nodes), plan.allocation.gpus
    used = len({(process.node, gpu) for process in plan.processes for gpu in process.gpus})
    console.print(
        f"[bold]{recipe.name}[/bold]: {len(plan.processes)} processes on {nodes} node{'s' if nodes > 1 else ''}, "
        f"{used} of {gpus} GPUs, ports {plan.ports[0]}-{plan.ports[1] - 1} (another block for each run)",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_placement_table(plan))
    if recipe.streams:
        console.print(_streams_table(recipe))
    console.print(f"hash {plan.hash}", highlight=False, soft_wrap=True)


def _placement_table(plan: Plan) -> Table:
    from rich.table import Table

    table = Table(title="placement", title_justify="left")
    for heading in ("group", "ranks", "replicas", "node", "GPUs", "cores", "ports"):
        table.add_column(heading)
    rows: dict[tuple[str, str], list[PlannedProcess]] = {}
    for process in plan.processes:
        rows.setdefault((process.group, process.node), []).append(process)
    for (group, node), held in list(rows.items())[:MOST_ROWS]:
        table.add_row(
            group,
            ranges(process.rank for process in held),
            ranges(process.replica for process in held),
            node,
            ranges(gpu for process in held for gpu in process.gpus),
            f"{len(held)} x {held[0].cpus}",
            ranges(port for process in held for port in (*process.ports, *process.meeting_ports)),
        )
    if len(rows) > MOST_ROWS:
        table.caption = f"{len(rows) - MOST_ROWS} more rows; --json prints all"
    return table


def _streams_table(recipe: Recipe) -> Table:
    from rich.table import Table

    table = Table(title="streams", title_justify="left")
    for heading in ("stream", "created by", "filled by", "read by", "cleared by"):
        table.add_column(heading, overflow="fold")
    for stream in recipe.streams:
        creates: list[str] = []
        fills: list[str] = []
        reads: list[str] = []
        clears: list[str] = []
        for name, group in recipe.groups.items():
            for write in group.role.writes():
                if write.stream == stream.name:
                    (creates if write.creates else fills).append(f"{name}: {', '.join(write.columns)}")
            for read in group.role.reads():
                if read.stream == stream.name:
                    reads.append(f"{name}: {', '.join(read.columns)}")
                    clears += [name] if read.final else []
        table.add_row(stream.name, *("\n".join(column) for column in (creates, fills, reads, clears)))
    for item in recipe.feedback:
        announce = [name for name, group in recipe.groups.items() if item.name in group.role.announces()]
        listen = [name for name, group in recipe.groups.items() if item.name in group.role.listens()]
        table.add_row(f"{item.name} (feedback)", "\n".join(announce), "", "\n".join(listen), "")
    return table


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in short: ``0-3, 7``; empty text for none."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)
