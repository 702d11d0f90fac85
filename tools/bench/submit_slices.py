"""What a supervisor costs with many slices: the real one, with an ``srun`` and a ``scontrol`` that only pretend.

Each slice is a step of one node with eight ignitors that report at once and then wait, and each ignitor has one process. The
supervisor's own CPU time and memory are read from the kernel: while it starts, in steady state, and once all processes but
one have left their done-records.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import hpcrl
from hpcrl.config.codec import recipe_to_json
from hpcrl.config.load import MODULE, sources
from hpcrl.config.override import build_recipe
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.layout import Component, Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import PACKAGED, load_site
from hpcrl.plan.plan import Plan, PlannedProcess, recipe_fingerprint
from hpcrl.recipe import Recipe
from hpcrl.run.atomic import write_text
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import wait_for

HERE = Path(__file__).parent
TARGET_PERCENT = 2.0
IGNITORS = 8
SETTLE_S = 5.0
UP_S = 240.0
# Slurm's commands by name. A pretended srun says what the ignitors of its step would say first, and stays.
COMMANDS = {
    "srun": """#!/bin/sh
while [ $# -gt 5 ]; do case $1 in --ntasks=*) tasks=${1#--ntasks=};; esac; shift; done
cd "$1/attempt_$2/rendezvous" && mkdir -p slots && slot=$3 && last=$(($3 + tasks))
while [ $slot -lt $last ]; do
  echo '{"run_id": "RUN_ID", "value": "here"}' > slots/$slot.json
  slot=$((slot + 1))
done
exec sleep 3600
""",
    "scontrol": """#!/bin/sh
case "$2" in
  hostnames) echo "$3";;
  config) echo "KillWait = 5 sec";;
  *) echo "JobId=1 JobState=RUNNING Reason=None EndTime=Unknown NodeList=n0";;
esac
""",
}


@dataclass(frozen=True)
class Cost:
    """What a supervisor took.

    Attributes:
        start_cpu_s: CPU time from its start until every step is up and the plan is read.
        percent: of one core, in steady state.
        late_percent: of one core, with the records of all processes but one.
        rss_mib: resident memory in steady state, and late_rss_mib with those records.
        end_s: wall-clock time from the last record until it goes on to end the steps.
    """

    slices: int
    start_cpu_s: float
    percent: float
    late_percent: float
    rss_mib: float
    late_rss_mib: float
    end_s: float


def make_run(folder: Path, slices: int) -> tuple[RunDirectory, Plan]:
    """The directory of a run with so many components of one node, and the plan that its ignitors would make."""
    recipe = build_recipe(HERE / "slices_recipe.py", (f"slices={slices}", f"each={IGNITORS}"))
    run = RunDirectory.create(
        folder, name=recipe.name, recipe_json=recipe_to_json(recipe), sources=sources(sys.modules[MODULE])
    )
    components = tuple(
        Component(
            name=group, groups=(group,), nodes=1, gpus_per_node=IGNITORS, cpus_per_node=64, memory_gib=8, partition="main"
        )
        for group in recipe.groups
    )
    layout = Layout(components=components, no_kill=False, minutes=60)
    facts = JobFacts(
        run=folder,
        run_id=run.run_id,
        name=recipe.name,
        code=(Path(hpcrl.__file__).parents[1],),
        python=Path(sys.prefix),
        signal_s=30,
        requeue=True,
    )
    JobFiles(layout, load_site(PACKAGED / "local-cluster.toml"), facts).write(folder)
    return run, plan_of(recipe, layout, run.run_id)


def plan_of(recipe: Recipe, layout: Layout, run_id: str) -> Plan:
    """One process on each slot."""
    processes = [
        PlannedProcess(
            group=group,
            replica=rank,
            rank=rank,
            world_size=IGNITORS,
            node=f"n{index}",
            slot=index * IGNITORS + rank,
            cpus=8,
            gpus=(rank,),
            ports=(20000 + rank,),
            address=f"n{index}",
            world_address=f"n{index}",
            world_port=0,
        )
        for index, group in enumerate(recipe.groups)
        for rank in range(IGNITORS)
    ]
    return Plan(run_id, recipe_fingerprint(recipe), layout.allocation(), (20000, 20100), tuple(processes))


def measure(folder: Path, slices: int, seconds: float) -> Cost:
    """Run a supervisor over so many slices from its start to its end.

    Args:
        seconds: for which each steady state is looked at.
    """
    run, plan = make_run(folder / f"slices{slices}", slices)
    with open(run.path / "slurm" / "1.log", "wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "hpcrl.supervise.supervisor", str(run.path)],
            env=environment(folder, run.run_id, slices),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    process = psutil.Process(supervisor.pid)

    def until(what: str, holds: Callable[[], bool]) -> None:
        def poll() -> bool | None:
            if supervisor.poll() is not None:
                raise RuntimeError(f"the supervisor ended before {what}; it said:\n{Path(log.name).read_text()}")
            return holds() or None

        wait_for(what, poll, seconds=UP_S)

    try:
        attempt = Attempt(run, 1)
        slots = attempt.path / "rendezvous" / "slots"
        until("all ignitors reported", lambda: slots.is_dir() and len(os.listdir(slots)) == len(plan.processes))
        write_text(attempt.path / "plan.json", plan.to_json())
        start_cpu_s = settled(process)
        percent, rss = load(process, seconds)
        *others, last = plan.processes
        for item in others:
            write_done(attempt, DoneRecord(process=item.name, status="done"))
        settled(process)
        late_percent, late_rss = load(process, seconds)
        ends = time.monotonic()
        write_done(attempt, DoneRecord(process=last.name, status="done"))
        until("the attempt ended", lambda: b"attempt 1: done" in Path(log.name).read_bytes())
        end_s = time.monotonic() - ends
    finally:
        if supervisor.poll() is None:
            for child in process.children(recursive=True):
                child.kill()
            supervisor.kill()
        supervisor.wait()
    return Cost(slices, start_cpu_s, percent, late_percent, rss, late_rss, end_s)


def environment(folder: Path, run_id: str, slices: int) -> dict[str, str]:
    """Of the batch script of a job with so many components, in which Slurm's commands are the pretended ones."""
    commands = folder / f"bin{slices}"
    commands.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(text.replace("RUN_ID", run_id))
        (commands / name).chmod(stat.S_IRWXU)
    lists = {f"SLURM_JOB_NODELIST_HET_GROUP_{index}": f"n{index}" for index in range(slices)}
    return {**os.environ, **lists, "SLURM_JOB_ID": "1", "PATH": f"{commands}:{os.environ['PATH']}"}


def settled(process: psutil.Process) -> float:
    """Wait until the supervisor has taken in what is new; its CPU time so far [s]."""
    time.sleep(SETTLE_S)
    times = process.cpu_times()
    return float(times.user + times.system)


def load(process: psutil.Process, seconds: float) -> tuple[float, float]:
    """Percent of a core and resident memory [MiB], over some time."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, spent = process.cpu_times(), time.monotonic() - began
    cpu = after.user + after.system - before.user - before.system
    return 100 * cpu / spent, process.memory_info().rss / 2**20


def figures(folder: Path, counts: Sequence[int], seconds: float) -> Iterator[str]:
    """The lines to print; ratios are to the fewest slices."""
    base = None
    for count in counts:
        cost = measure(folder, count, seconds)
        base = base or cost
        verdict = "met" if max(cost.percent, cost.late_percent) < TARGET_PERCENT else "missed"
        yield f"supervisor of {cost.slices} slices, {cost.slices * IGNITORS} processes"
        yield f"  start                {cost.start_cpu_s:6.2f} s of CPU  ratio {cost.start_cpu_s / base.start_cpu_s:.2f}"
        yield f"  steady               {cost.percent:6.2f} % of a core"
        yield f"  all records but one  {cost.late_percent:6.2f} % of a core (target of both {TARGET_PERCENT:g} %: {verdict})"
        yield f"  memory               {cost.rss_mib:6.1f} MiB  ratio {cost.rss_mib / base.rss_mib:.2f}"
        yield f"    with the records   {cost.late_rss_mib:6.1f} MiB  ratio {cost.late_rss_mib / base.late_rss_mib:.2f}"
        yield f"  from the last one    {cost.end_s:6.2f} s to the end of the attempt"
