"""From a job's start until all its roles are ready, against plain ``srun`` of as many processes with the same imports.

Ready means: a role's ``run`` is reached with its queue connected, and what the role imports is imported. The start is the first
line of the batch script, in both. Each round submits a run anew, so its copy of the code is as fresh as that of any submission.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm.cluster import Cluster

HERE = Path(__file__).parent
SITE = "local-cluster"
TARGET_S = 2.0
READY_S = 240.0
# What a trainer and a rollout import when they begin.
REAL_MODULES = "hpcrl.engines.titan.trainer,hpcrl.data.tokenizer"
# Each ends with a file: the attempt's own, the first and the last ignitor's report, the plan, the last endpoint of the queue,
# the last role's word.
STAGES = ("supervisor", "srun", "ignitors", "plan", "queue", "roles")


@dataclass(frozen=True)
class Start:
    """One start.

    Attributes:
        seconds: until all were ready.
        processes, queue: how many there were, and how many of them are the queue's own.
        stages: seconds of each, of ours.
    """

    seconds: float
    processes: int
    queue: int
    stages: Mapping[str, float]


def run_ours(cluster: Cluster, folder: Path, nodes: int, each: int, modules: str) -> Start:
    """Submit a run, start its job, and take it down once its roles are ready."""
    env = {**os.environ, **cluster.env}
    command = [sys.executable, "-m", "hpcrl.cli.main", "submit", str(HERE / "ready_recipe.py"), "--site", SITE, "--time", "10"]
    command += [
        "--nodes",
        str(nodes),
        "--set",
        f"each={each}",
        "--set",
        f"modules={modules}",
        "--hold",
        "--run-dir",
        str(folder),
    ]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    held = [json.loads(line)["job"] for line in (folder / "slurm" / "jobs.jsonl").read_text().splitlines()]
    cluster.run("scancel", *held)
    script = (folder / "slurm" / "batch.sh").read_text()
    started, times = run_script(cluster, folder, script, 2 * each)
    attempt = folder / "attempt_1"
    processes = [item["group"] for item in json.loads((attempt / "plan.json").read_text())["processes"]]
    return Start(max(times) - started, len(processes), processes.count("queue"), stages(attempt, started, max(times)))


def run_plain(cluster: Cluster, like: Start, ours: Path, folder: Path, nodes: int, modules: str) -> Start:
    """Start as many processes by ``srun`` from a batch script with the header of that of our start."""
    folder.mkdir()
    head = [line for line in (ours / "slurm" / "batch.sh").read_text().splitlines() if line.startswith("#")]
    srun = f"srun --nodes={nodes} --ntasks={like.processes} --cpus-per-task=1 --exact --cpu-bind=none --mpi=none --mem=0"
    srun += f" --output={folder}/step.log {sys.executable} {HERE}/ready_plain.py {folder} {like.queue} {modules}"
    script = "\n".join([*head, f"exec {srun}"]) + "\n"
    started, times = run_script(cluster, folder, script, like.processes)
    return Start(max(times) - started, like.processes, like.queue, {})


def run_script(cluster: Cluster, folder: Path, script: str, count: int) -> tuple[float, list[float]]:
    """Run a batch script until ``count`` processes are ready and then to its end; when it began, and when each was ready."""
    (folder / "ready").mkdir()
    lines = script.splitlines()
    first = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    lines.insert(first, f"date +%s.%N > {folder}/began")
    path = folder / "bench.sh"
    path.write_text("\n".join(lines) + "\n")
    job = cluster.run("sbatch", "--parsable", f"--output={folder}/job.log", str(path)).strip()

    def all_ready() -> list[str] | None:
        found = [item.read_text() for item in (folder / "ready").glob("[!.]*")]
        return found if len(found) == count else None

    try:
        times = wait_for(f"{count} processes to be ready in {folder}", all_ready, seconds=READY_S)
    finally:
        (folder / "go").touch()
    cluster.wait_job(job, {"COMPLETED"}, seconds=READY_S)
    return float((folder / "began").read_text()), [float(item) for item in times]


def stages(attempt: Path, began: float, ready: float) -> dict[str, float]:
    """Seconds of each stage of a start, from the times of the files that end it."""
    ends = [
        (attempt / "began.json").stat().st_mtime,
        min(path.stat().st_mtime for path in attempt.glob("rendezvous/slots/*.json")),
        max(path.stat().st_mtime for path in attempt.glob("rendezvous/slots/*.json")),
        (attempt / "plan.json").stat().st_mtime,
        max(path.stat().st_mtime for path in attempt.glob("rendezvous/queue.*.json")),
        ready,
    ]
    return {name: end - start for name, start, end in zip(STAGES, [began, *ends], ends, strict=False)}


def figures(cluster: Cluster, folder: Path, rounds: int, nodes: int, each: int) -> Iterator[str]:
    """Start ours and plain ones in turn, with roles of either kind; the lines to print."""
    for what, modules in (("roles that import nothing", ""), ("roles that import what a trainer does", REAL_MODULES)):
        ours: list[Start] = []
        plain: list[Start] = []
        for number in range(rounds):
            run = folder / f"ours{number}{bool(modules)}"
            ours.append(run_ours(cluster, run, nodes, each, modules))
            plain.append(run_plain(cluster, ours[-1], run, folder / f"plain{number}{bool(modules)}", nodes, modules))
        yield from lines(f"ready: {what}, {plain[0].processes} processes on {nodes} nodes", ours, plain)


def lines(what: str, ours: Sequence[Start], plain: Sequence[Start]) -> Iterator[str]:
    """A figure each."""
    base, mine = median(item.seconds for item in plain), median(item.seconds for item in ours)
    # Of neighbours in time, so that a change of the load between rounds does not count.
    more = median(a.seconds - b.seconds for a, b in zip(ours, plain, strict=True))
    verdict = "met" if more <= TARGET_S else "missed"
    yield what
    yield f"  plain srun           {base:6.3f} s  ratio 1.00"
    yield f"  hpcrl                {mine:6.3f} s  ratio {mine / base:.2f}  {more:.3f} s more (target {TARGET_S:g} s: {verdict})"
    quick, quickest = min(item.seconds for item in plain), min(item.seconds for item in ours)
    yield f"  fastest of each      {quickest:6.3f} s  ratio {quickest / quick:.2f}  {quickest - quick:.3f} s more"
    for name in STAGES:
        yield f"    {name:<17}  {median(item.stages[name] for item in ours):6.3f} s"
