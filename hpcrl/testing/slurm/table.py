"""A cluster's status for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.testing.slurm.status import SERVING, Status


def render(status: Status) -> RenderableType:
    """Tables of daemons, nodes, partitions and jobs, and what is wrong at the end."""
    alive = sum(daemon.alive for daemon in status.daemons)
    head = Text.assemble(
        (status.name, "bold"), f"  Slurm {status.version}  {status.folder}  {alive}/{len(status.daemons)} daemons"
    )
    nodes = _table(
        ("NODE", "STATE", "CPUS USED", "GPUS USED", "REASON"),
        (
            (
                node.name,
                Text(node.state, "green" if node.state in SERVING else "red"),
                str(node.cpus_used),
                node.gpus_used,
                node.reason,
            )
            for node in status.nodes
        ),
    )
    partitions = _table(
        ("PARTITION", "STATE", "TIER", "PREEMPT MODE", "NODES"),
        ((part.name, part.available, str(part.tier), part.preempt_mode, str(part.nodes)) for part in status.partitions),
    )
    jobs = _table(
        ("JOB", "PARTITION", "NAME", "STATE", "TIME", "NODES OR REASON"),
        ((job.id, job.partition, job.name, job.state, job.time, job.where) for job in status.jobs),
    )
    parts: list[RenderableType] = [head, nodes, partitions]
    parts.append(jobs if status.jobs else Text("no jobs", "dim"))
    parts += [Text(problem, "red") for problem in status.problems] or [Text("all is well", "green")]
    return Group(*parts)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table
